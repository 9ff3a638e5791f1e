"""Trials side by side: nothing is any different for them, or is imposed, that was not asked for."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.devices import names_devices
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
        of_trial = record(beside, index)
        threads = seen["OMP_NUM_THREADS"]
        assert of_trial["imposed"] == {
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


@names_devices
def test_devices_are_imposed_by_number(beside: Stage) -> None:
    """Which device a trial gets is in its record, and no part of its request; without a GPU, they are names only."""
    runs = []
    for devices in ("3", "5"):
        result = beside.run_here(*workloads("tells"), "--aorta-devices", devices)
        result.stdout.fnmatch_lines([f"1 device per trial (--aorta-devices {devices})"])
        runs.append(record(beside, workload="tells"))
    assert [trial["imposed"]["devices"] for trial in runs] == [[3], [5]]
    assert runs[1]["imposed"]["variables"]["CUDA_VISIBLE_DEVICES"] == "5"
    assert runs[0]["request_fingerprint"] == runs[1]["request_fingerprint"]
    result = beside.run_here(*workloads("tells"), "--aorta-devices", "none")
    result.stdout.fnmatch_lines(["no device per trial (--aorta-devices none)"])
    assert record(beside, workload="tells")["request_fingerprint"] != runs[0]["request_fingerprint"]


@pytest.mark.slow
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


def test_only_what_is_selected_is_started(faulty: Stage) -> None:
    options = (*workloads("passes", "raises"), "--aorta-trials", "3", *TWO)

    def run(*arguments: str) -> list[str]:
        faulty.results = faulty.path / f"run_{len(list(faulty.path.glob('run_*')))}"
        faulty.run_here(*options, *arguments, "--aorta-results-dir", faulty.results.name)
        return faulty.files() if faulty.results.exists() else ["nothing at all"]

    assert run("-k", "passes and 2") == ["passes/trial_2.json"]
    assert run("aorta::raises[local-none-1]", "::passes[local-none-0]") == [
        "passes/trial_0.json",
        "raises/trial_1.json",
    ]
    assert run("--lf") == ["raises/trial_1.json"]
    for arguments in (("--collect-only",), ("--setup-plan",)):
        assert run(*arguments) == ["nothing at all"]


@pytest.mark.slow
def test_skipped_items_leave_nothing(faulty: Stage) -> None:
    faulty.write(
        conftest="""
        import pytest

        def pytest_collection_modifyitems(items):
            items[1].add_marker(pytest.mark.skip(reason="of a mark"))
        """
    )
    options = (*workloads("passes"), "--aorta-trials", "5", *TWO)
    faulty.run_here(*options).assert_outcomes(passed=4, skipped=1)
    assert not [path for path in faulty.everything() if "trial_1" in path]
    # A hook of the user may do anything before its item. A trial that has a result keeps it when its item is skipped.
    faulty.write(
        conftest="""
        import pytest

        def pytest_runtest_setup(item):
            if "-3]" in item.name:
                pytest.skip("of a hook")
        """
    )
    result = faulty.run_here(*options)
    result.assert_outcomes(passed=4, skipped=1)
    result.stdout.fnmatch_lines(["one after the other, *: pytest_runtest_setup (conftest.py)"])
    assert sorted(faulty.earlier()) == [f"passes/trial_{index}.json" for index in (0, 2, 4)]
    assert len(faulty.files()) == 5


BETWEEN = """
import neighbours
from neighbours import Tells

def test_patches(monkeypatch, tmp_path):
    (tmp_path / "patched").mkdir()
    monkeypatch.setenv("SEEN", "patched")
    monkeypatch.syspath_prepend(tmp_path / "patched")
    monkeypatch.chdir(tmp_path / "patched")
    neighbours.note("one")
    # The next ones start only now.
    assert neighbours.wait_for("started-Last", 3)

def test_runs_a_trial_of_its_own(aorta_run, monkeypatch):
    monkeypatch.setenv("SEEN", "by its own")
    neighbours.note("go")
    record = aorta_run(Tells)
    assert record.exit_status == "ok"
    assert record.result.metrics["SEEN"] == "by its own"
"""


@pytest.mark.slow
def test_what_a_test_patches_is_not_seen_by_trials_that_run_beside_it(beside: Stage) -> None:
    beside.write(
        first="""
        import neighbours

        class First(neighbours.Tells):
            def setup(self): pass
            def run(self): return {"passed": True, "metrics": self.seen()}
        """,
        test_between=BETWEEN,
        last="""
        import os
        import neighbours

        class Last(neighbours.Tells):
            def setup(self): super().setup()
            def run(self):
                # The first one ends once the test has patched; all others stay until it has ended.
                kind = "one" if os.environ["AORTA_TRIAL_INDEX"] == "0" else "go"
                return {"passed": neighbours.wait_for(kind), "metrics": self.seen()}
        """,
    )
    result = beside.run("first.py", "test_between.py", "last.py", "-o", "aorta_trials=5", *TWO)
    result.assert_outcomes(passed=12)
    of_last = [trial["result"]["metrics"] for path, trial in beside.trials().items() if path.startswith("Last")]
    assert [(seen["SEEN"], seen["cwd"], seen["path"]) for seen in of_last] == [(None, str(beside.path), [])] * 5
