"""Waits that a signal always ends, ends of logs, lists of numbers, names, and the topology of AMD's driver."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_aorta.common.interrupts import PIECE, pieces
from pytest_aorta.common.kfd_topology import kfd_nodes, kfd_properties
from pytest_aorta.common.texts import format_ranges, identifier, parse_ranges, read_tail
from pytest_aorta.trials.tracebacks import own_message


def test_no_piece_is_longer_than_a_signal_may_wait() -> None:
    cases: list[tuple[float | None, list[float]]] = [(0.0, [0.0]), (-1.0, [0.0]), (0.5, [0.5]), (None, [PIECE, PIECE])]
    for timeout, first in cases:
        assert list(islice(pieces(timeout), 2)) == pytest.approx(first, abs=0.01)


def test_a_signal_that_is_handled_too_late_for_the_system_call_ends_the_wait() -> None:
    # A handler on the main thread cannot be placed between CPython's look at its signals and the system call. A wait
    # that has begun when the signal comes to another thread is the same: no system call of this one is interrupted.
    code = """
import signal, threading
from pytest_aorta.common.interrupts import pieces

def interrupt_here():
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore the signal
threading.Timer(0.3, interrupt_here).start()
try:
    for seconds in pieces(None):
        threading.Event().wait(seconds)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n"


def test_the_tail_of_a_file_is_text_whatever_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert read_tail(file, 8) == read_tail(tmp_path, 8) == ""
    file.write_bytes(b"first\nsecond \xff")
    assert read_tail(file, 8) == "second \N{REPLACEMENT CHARACTER}"
    assert read_tail(file, 1000).startswith("first")


def test_nodes_come_in_the_order_of_their_numbers_with_properties_by_name(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for name in ("10", "9", "0", "other"):
        (nodes / name).mkdir(parents=True)
    (nodes / "9" / "properties").write_text("simd_count 304\n\nunique_id 7\nno_value\n")

    assert kfd_nodes(tmp_path) == [nodes / "0", nodes / "9", nodes / "10"]
    assert kfd_properties(nodes / "9") == {"simd_count": 304, "unique_id": 7}
    with pytest.raises(OSError):
        kfd_properties(nodes / "0")


@given(st.sets(st.integers(0, 10**6), min_size=1))
def test_ranges_of_numbers_read_back_as_they_were_written(numbers: set[int]) -> None:
    assert set(chain(*parse_ranges(format_ranges(numbers)))) == numbers


def test_successive_numbers_are_a_range_and_order_and_overlaps_of_a_text_are_kept() -> None:
    assert [format_ranges(each) for each in (set(), {3}, {0, 1, 2, 5, 7, 8})] == ["", "3", "0-2,5,7-8"]
    assert parse_ranges("4, 1-2 ,2\n") == [range(4, 5), range(1, 3), range(2, 3)]


def test_anything_else_is_refused() -> None:
    for text in ["", ",", "1,", "a", "-1", "3-1", "0-", "1.0", "0x1", "٣", "1 2", "1" * 100_000]:
        with pytest.raises(ValueError, match="neither a number nor a range"):
            parse_ranges(text)


_SAFE = re.compile(r"[A-Za-z0-9_+=~][A-Za-z0-9_.+=~-]*")

# Any text, and texts that are close to each other and to what the function itself makes.
_close = st.text(alphabet="ab_.-~/+=0 é[]:\n", max_size=12)
names = st.text() | _close | _close.map(identifier) | st.text(alphabet="x/", min_size=118, max_size=135)


@given(names, names)
@example("", ".")
@example("..", "-k")
@example("a/b", "a_b")
@example("a::b[c]", "nul\0")
@example("line\n", "\udcff")
@example("x" * 10_000, "~e3b0c442")
@example("x" * 121, "x" * 122)
@example("A", "a")
@example("", "~e3b0c442")
def test_an_identifier_is_short_and_safe_and_of_one_name_only(left: str, right: str) -> None:
    for made in map(identifier, (left, right)):
        assert _SAFE.fullmatch(made)
        assert made not in (".", "..")
        assert len(made) <= 160
    assert (identifier(left) == identifier(right)) == (left == right)


def test_a_name_that_is_safe_is_not_changed() -> None:
    for name in ["fsdp", "rocm7-venv", "tf32_off", "a.b", "a+b", "x=1", "A", "0", "_", "x" * 120]:
        assert identifier(name) == name


@pytest.mark.parametrize(
    ("chained", "said"),
    [(False, "cannot read 7: it is\ntruncated"), (True, "the index is corrupt")],
)
def test_the_message_of_what_a_worker_has_raised_is_first_what_it_says(chained: bool, said: str) -> None:
    torch_utils: Any = importlib.import_module("torch._utils")

    def read() -> None:
        try:
            raise OSError("cannot read 7: it is\ntruncated")
        except OSError as error:
            if chained:
                raise ValueError("the index is corrupt") from error
            raise

    try:
        read()
    except Exception:
        wrapped = torch_utils.ExceptionWrapper(where="in DataLoader worker process 1")
    with pytest.raises((OSError, ValueError)) as raised:
        wrapped.reraise()
    assert own_message(str(raised.value)) == f"{said} (in DataLoader worker process 1)"
    assert own_message(said) == said
