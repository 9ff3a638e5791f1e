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


TAKES_TURNS = """
import os
import neighbours

LATE = os.environ.get("SEEN") == "late"
if LATE:
    assert neighbours.wait_for("started-quick", 3)

class Turns(neighbours.Tells):
    def setup(self):
        neighbours.note("started-late" if LATE else "started-quick")
    def run(self):
        # From the third one on, it is the other cell's turn.
        return {"passed": LATE or neighbours.count("started-quick") < 3 or neighbours.wait_for("started-late")}
"""


def test_cells_take_turns_however_long_their_preparation_takes(beside: Stage) -> None:
    beside.write(turns=TAKES_TURNS)
    beside.write_registry(mitigations={"late": {"SEEN": "late"}})
    cells = ("--aorta-registry-file", "registry.json", "--aorta-mitigations", "none", "--aorta-mitigations", "late")
    beside.run("turns.py", *cells, "--aorta-trials", "8", *TWO).assert_outcomes(passed=16)


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


def test_cell_that_cannot_be_imported(faulty: Stage) -> None:
    faulty.write(
        broken="""
        import os
        if os.path.exists("break"):
            raise ImportError("no such driver")
        from faulty_workloads import Passes
        class Broken(Passes):
            pass
        """
    )
    faulty.register(passes="faulty_workloads:Passes", broken="broken:Broken")
    options = (*workloads("broken", "passes"), "--aorta-trials", "3", *TWO)
    faulty.run(*options).assert_outcomes(passed=6)
    (faulty.path / "break").touch()
    result = faulty.run(*options)
    result.assert_outcomes(passed=3, errors=3)
    trials = [faulty.trial(f"broken/trial_{index}.json") for index in range(3)]
    assert [trial["exit_status"] for trial in trials] == ["infrastructure_failed"] * 3
    assert {(trial["failure"]["phase"], trial["failure"]["type"]) for trial in trials} == {("import", "ImportError")}
    assert {trial["failure"]["message"] for trial in trials} == {"no such driver"}
    # None was started; earlier results were not overwritten all the same.
    assert [trial["artifacts"] for trial in trials] == [{}] * 3
    assert len(faulty.earlier()) == 6
