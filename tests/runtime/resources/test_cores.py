"""Shares of CPU cores. ``fake_topology`` is a tree of files: machines here have few cores, and no hyper-threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_aorta.runtime.resources.devices import core_shares, equal_shares, threads_of


def fake_topology(root: Path, *siblings: str) -> Path:
    """``/sys`` of a host whose cores have these hyper-threads, each as the kernel writes it: ``0,4`` or ``0-1``."""
    for text in siblings:
        low, separator, high = text.replace("-", ",").partition(",")
        for cpu in {low, high} if separator else {low}:
            folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{text}\n")
    return root


def test_shares_are_disjoint_contiguous_and_as_equal_as_possible(tmp_path: Path) -> None:
    assert core_shares(3, range(8), tmp_path) == [(0, 1, 2), (3, 4, 5), (6, 7)]
    assert core_shares(1, range(3), tmp_path) == [(0, 1, 2)]
    assert core_shares(2, {9, 1, 5, 3}, tmp_path) == [(1, 3), (5, 9)]


@pytest.mark.parametrize("slots", range(1, 17))
def test_shares_hold_every_cpu_once_while_there_are_enough(tmp_path: Path, slots: int) -> None:
    root = fake_topology(tmp_path, *(f"{core},{core + 8}" for core in range(8)))
    shares = core_shares(slots, range(16), root)

    assert sorted(cpu for share in shares for cpu in share) == list(range(16))
    assert len(shares) == slots
    assert all(shares)


def test_hyper_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    root = fake_topology(tmp_path, "0,4", "1,5", "2,6", "3,7")

    assert core_shares(2, range(8), root) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert core_shares(3, range(8), root) == [(0, 1, 4, 5), (2, 6), (3, 7)]


def test_hyper_threads_are_dealt_out_when_cores_do_not_suffice(tmp_path: Path) -> None:
    root = fake_topology(tmp_path, "0,2", "1,3")

    assert core_shares(3, range(4), root) == [(0, 2), (1,), (3,)]


def test_more_slots_than_cpus_take_turns(tmp_path: Path) -> None:
    assert core_shares(5, {0, 1}, tmp_path) == [(0,), (1,), (0,), (1,), (0,)]


def test_equal_shares_leave_over_what_does_not_divide(tmp_path: Path) -> None:
    root = fake_topology(tmp_path, "0,4", "1,5", "2,6", "3,7")

    assert equal_shares(3, range(8), root) == [(0, 4), (1, 5), (2, 6)]
    assert equal_shares(2, range(8), root) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert equal_shares(5, range(8), root) is None


def test_the_number_of_threads_is_the_number_of_physical_cores(tmp_path: Path) -> None:
    root = fake_topology(tmp_path, "0,2", "1,3")

    assert threads_of((0, 1, 2, 3), root) == 2
    assert threads_of((0, 2), root) == 1
    assert threads_of((0, 1), root) == 2
    assert threads_of((3,), root) == 1
    assert threads_of((), root) == 1
    assert threads_of((0, 1, 2), tmp_path / "no such tree") == 3


def test_by_default_what_this_process_may_use_is_dealt_out() -> None:
    (share,) = core_shares(1)

    assert set(share) == os.sched_getaffinity(0)
    assert 1 <= threads_of(share) <= len(share)


@pytest.mark.parametrize(("slots", "available"), [(0, {0}), (-1, {0}), (1, set())])
def test_no_slot_and_no_cpu_are_refused(slots: int, available: set[int]) -> None:
    with pytest.raises(ValueError, match=r"at least 1, not|no CPU"):
        core_shares(slots, available)
