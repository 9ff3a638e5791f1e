"""``--aorta-slots``: several trials at a time in one pytest process, and nothing else is any different."""

from __future__ import annotations

from support.neighbourhood import metrics, workloads
from support.stage import Stage

TWO = ("--aorta-slots", "2")


# What they are for


def test_trials_run_at_the_same_time(beside: Stage) -> None:
    result = beside.run(*workloads("meets"), "--aorta-trials", "2", *TWO)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["aorta: plan * 2 trials in 1 cell, 2 slots, results in results"])
    assert beside.left_running() == []


def test_isolation(beside: Stage) -> None:
    options = (*workloads("meets"), "--aorta-trials", "2", *TWO)
    beside.run(*options, "--aorta-isolation", "spawn").assert_outcomes(passed=2)
    # Without isolation they run in this process, and so one after the other.
    result = beside.run(
        *workloads("tells"), "--aorta-trials", "3", *TWO, "--aorta-isolation", "none", "--aorta-results-dir", "alone"
    )
    result.assert_outcomes(passed=3)
    beside.results = beside.path / "alone"
    assert len({seen["pid"] for seen in metrics(beside)}) == 1
    assert beside.left_running() == []


def test_distributed_trials(stage: Stage) -> None:
    stage.write(
        pairs="""
        import os

        class Pair:
            launch_mode = "distributed"
            min_world_size = 2

            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": True, "metrics": {"rank": int(os.environ["RANK"])}}
        """
    )
    stage.run("pairs.py", "--aorta-trials", "3", *TWO).assert_outcomes(passed=3)
    trials = stage.trials().values()
    assert [[rank["rank"] for rank in trial["ranks"]] for trial in trials] == [[0, 1]] * 3
    assert stage.left_running() == []


# Values


# Cells that cannot be prepared, workloads that cannot be forked, time limits
