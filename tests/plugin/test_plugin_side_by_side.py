"""What a run imposes on trials that run side by side: nothing that it was not asked for, and that is said."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.neighbourhood import metrics, workloads
from support.stage import Stage

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
MINE = sorted(os.sched_getaffinity(0))
TWO = ("--aorta-slots", "2")

needs_two_cpus = pytest.mark.skipif(len(MINE) < 2, reason="needs two CPUs to divide")


def record(stage: Stage, index: int = 0, workload: str = "meets") -> dict[str, Any]:
    return stage.trial(f"{workload}/trial_{index}.json")


@pytest.mark.parametrize(
    "how", [TWO, pytest.param(("-n", "2"), marks=[pytest.mark.slow, pytest.mark.long])], ids=["slots", "xdist"]
)
def test_trials_side_by_side_see_what_one_sees_alone(beside: Stage, how: tuple[str, ...]) -> None:
    beside.run(*workloads("tells")).assert_outcomes(passed=1)
    alone = record(beside, workload="tells")
    result = beside.run(*workloads("meets", "tells"), "--aorta-trials", "2", *how, "--aorta-results-dir", "several")
    result.assert_outcomes(passed=4)
    beside.results = beside.path / "several"
    for seen in metrics(beside):
        assert seen["cores"] == MINE
        assert [seen[name] for name in THREADS] == [None] * 3
    several = record(beside, workload="tells")
    assert several["request_fingerprint"] == alone["request_fingerprint"]
    assert several["imposed"] == {"threads": None, "cpus": None, "devices": None, "variables": {}}
    numbers = {name: several["side_by_side"][name] for name in ("slots", "workers", "hosts")}
    assert numbers == {"slots": 2, "workers": 1, "hosts": 1} if how == TWO else {"slots": 1, "workers": 2, "hosts": 1}
    assert 1 <= several["side_by_side"]["cores"] <= len(MINE)


@needs_two_cpus
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(TWO, id="slots"),
        pytest.param(("-n", "2"), id="xdist", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param((*TWO, "--aorta-host", "popen"), id="host", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_own_cores_are_imposed_recorded_and_said(
    beside: Stage, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    options = (*workloads("meets"), "--aorta-trials", "2", *how)
    result = beside.run(*options, "--aorta-slots=own-cores" if how[0] == "-n" else "--aorta-slots=2,own-cores")
    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines([r"2 (slots|xdist workers): \d+ CPUs? and \d+ threads? per trial \(own-cores\)"])
    first, second = metrics(beside)
    assert not set(first["cores"]) & set(second["cores"])
    assert {*first["cores"], *second["cores"]} <= set(MINE)
    for index, seen in enumerate((first, second)):
        found = record(beside, index)
        threads = seen["OMP_NUM_THREADS"]
        assert found["imposed"] == {
            "threads": int(threads),
            "cpus": seen["cores"],
            "devices": None,
            "variables": {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
        }
        assert seen["MKL_NUM_THREADS"] == "7"  # the user's own
    # It is another request, so its result does not stand for one without it.
    again = beside.run(*options, "--aorta-resume")
    again.stdout.fnmatch_lines(
        [
            "0 of 2 trials had a result already (--aorta-resume)",
            f"2 earlier results not kept: imposed threads {threads} -> none; imposed cores {threads} -> none",
        ]
    )


def test_devices_are_imposed_by_number(beside: Stage) -> None:
    """Which device a trial gets is in its record, and no part of its request; without a GPU, they are names only."""
    found = []
    for devices in ("3", "5"):
        result = beside.run_here(*workloads("tells"), "--aorta-devices", devices)
        result.stdout.fnmatch_lines([f"1 device per trial (--aorta-devices {devices})"])
        found.append(record(beside, workload="tells"))
    assert [trial["imposed"]["devices"] for trial in found] == [[3], [5]]
    assert found[1]["imposed"]["variables"]["CUDA_VISIBLE_DEVICES"] == "5"
    assert found[0]["request_fingerprint"] == found[1]["request_fingerprint"]
    result = beside.run_here(*workloads("tells"), "--aorta-devices", "none")
    result.stdout.fnmatch_lines(["no device per trial (--aorta-devices none)"])
    assert record(beside, workload="tells")["request_fingerprint"] != found[0]["request_fingerprint"]


def test_threads_that_cores_do_not_suffice_for_are_said(beside: Stage) -> None:
    beside.write(
        crowd="""
        import torch
        import neighbours

        class Crowd(neighbours.Tells):
            def setup(self): torch.set_num_threads(64)
            def run(self): return super().run()
        """
    )
    result = beside.run("crowd.py", "--aorta-trials", "2", *TWO)
    result.stdout.fnmatch_lines(["2 slots x 64 threads on * core*: steps may take many times longer than alone *"])
