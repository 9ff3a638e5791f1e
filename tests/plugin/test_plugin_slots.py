"""``--aorta-slots``: several trials at a time in one pytest process, and nothing else is any different."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from support.neighbourhood import metrics, workloads
from support.stage import Stage

TWO = ("--aorta-slots", "2")


def lines(result: pytest.RunResult) -> list[str]:
    """What a run has printed, without times and process ids."""
    return [re.sub(r"\d+\.\d+s\b|0x[0-9a-f]+|\bpid \d+", "#", line).rstrip("= ") for line in result.outlines]


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


@pytest.mark.slow
@pytest.mark.long
def test_gemm_gives_the_same_files(stage: Stage) -> None:
    options = (*workloads("gemm"), "--aorta-trials", "64", "--aorta-steps", "1", "--aorta-config", "sizes=16x16x16")
    found = []
    for slots in ("1", "2"):
        stage.results = stage.path / f"slots_{slots}"
        result = stage.run(*options, "--aorta-slots", slots, "--aorta-results-dir", stage.results.name)
        result.assert_outcomes(passed=64)
        found.append(
            {
                path: {
                    **{key: trial[key] for key in ("trial_id", "exit_status", "request_fingerprint", "config")},
                    **{key: trial[key] for key in ("cell", "trial_index", "mitigations_applied", "artifacts")},
                    "failures": trial["result"]["failure_count"],
                    "metrics": {k: v for k, v in trial["result"]["metrics"].items() if not _is_of_time(k)},
                }
                for path, trial in stage.trials().items()
            }
        )
    assert sorted(found[0]) == sorted(f"gemm/trial_{index}.json" for index in range(64))
    assert found[0] == found[1]


def _is_of_time(name: str) -> bool:
    return any(part in name for part in ("ms", "sec", "flops", "time"))


@pytest.mark.slow
def test_reports_look_as_without(faulty: Stage) -> None:
    """One trial that hangs, one that crashes, and so on, beside others that pass: in the order of the items."""
    options = (
        *workloads("passes", "hangs", "crashes", "raises", "unset", "unclean"),
        *(
            "--aorta-trials",
            "2",
            "-v",
            "--durations",
            "3",
            "--durations-min",
            "0",
            "--junitxml",
            "out.xml",
            "-p",
            "no:cacheprovider",
        ),
    )
    alone = faulty.run(*options, "--aorta-results-dir", "alone")
    report = junit(faulty)
    several = faulty.run(*options, "--aorta-slots", "4")
    # An item whose cleanup failed counts as passed and as an error.
    for run in (alone, several):
        run.assert_outcomes(passed=4, failed=6, errors=4)
        assert run.ret == pytest.ExitCode.TESTS_FAILED
    assert faulty.words(several) == faulty.words(alone)
    assert list(faulty.words(several)) == list(faulty.words(alone))
    assert faulty.words(several)["hangs[local-none-1]"] == ["TIMEOUT"]
    assert junit(faulty) == report
    # The same table, the same tracebacks and the same summary.
    different = [line for line in lines(several) if line not in lines(alone)]
    slowest = [line for line in different if re.match("#? *#? *(import|setup|call|teardown) ", line)]
    assert sorted(line for line in different if line not in slowest) == sorted(
        [
            next(line for line in lines(several) if ", 4 slots, " in line),
            "results: results",
            *(line for line in different if line.startswith(("trial file: ", "run it again: ", "with the same"))),
        ]
    )
    faulty.results = faulty.path / "alone"
    expected = faulty.statuses()
    faulty.results = faulty.path / "results"
    assert faulty.statuses() == expected
    assert faulty.left_running() == []


def junit(stage: Stage) -> list[tuple[str | None, list[tuple[str, str | None]], list[tuple[str | None, ...]]]]:
    """Of every item, in their order: name, what went wrong, properties, without the name of the results directory."""
    cases = ElementTree.parse(stage.path / "out.xml").iter("testcase")
    return [
        (
            case.get("name"),
            [(child.tag, child.get("message")) for child in case if child.tag != "properties"],
            [
                (found.get("name"), found.get("value", "").replace("/alone/", "/results/"))
                for found in case.iter("property")
            ],
        )
        for case in cases
    ]


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


@pytest.mark.slow
def test_beside_xdist(faulty: Stage) -> None:
    options = (*workloads("passes"), "--aorta-trials", "4")
    for others in (("-n", "2"), ("--tx", "2*popen", "--dist", "load")):
        result = faulty.run(*options, *others, *TWO)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        (message,) = [line for line in result.errlines if line]
        assert message == "ERROR: --aorta-slots 2 and -n both run trials side by side; use one of them"
        assert faulty.files() == []
    faulty.run(*options, "-n", "2", "--aorta-slots", "auto").assert_outcomes(passed=4)
    faulty.run(*options, "--tx", "2*popen", "--dist", "load", "--aorta-slots", "auto").assert_outcomes(passed=4)


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


UNFORKABLE = """
import threading
import time
import neighbours

threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

class Threaded(neighbours.Meets):
    def setup(self): pass
    def run(self): return super().run()
"""


@pytest.mark.slow
def test_workload_that_cannot_be_forked(beside: Stage) -> None:
    beside.write(threaded=UNFORKABLE)
    # On devices, because it is imported anew for each; without a GPU, they are names only.
    options = ("--aorta-trials", "4", *TWO, "--aorta-devices", "0-1")
    result = beside.run("threaded.py", *options)
    result.assert_outcomes(passed=4, warnings=1)
    result.stdout.fnmatch_lines(["*importing */threaded.py * a fork would not be safe*"])
    # As an error, it is one item's, whose trial is ended, unless it is over by then.
    result = beside.run("threaded.py", *options, "-W", "error")
    assert result.parseoutcomes()["passed"] == 3
    result.stdout.fnmatch_lines(["*ERROR at setup of Threaded*", "E *PytestWarning: importing *"])
    assert sorted(beside.statuses().values())[1:] == ["ok", "ok", "ok"]
    assert beside.left_running() == []


@pytest.mark.slow
def test_time_limits(faulty: Stage) -> None:
    faulty.write(
        slow="""
        import time

        class Slow:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                time.sleep(self.seconds)
                return {"passed": True}

        class Short(Slow):
            seconds = 0.1
            def setup(self): pass
            def run(self): return super().run()

        class Long(Slow):
            seconds = 1000
            def setup(self): pass
            def run(self): return super().run()
        """,
        conftest="""
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                if "Long[" in item.name:
                    item.add_marker(pytest.mark.timeout(0.5))
                if item.name == "Short[local-none-1]":
                    item.add_marker(pytest.mark.timeout(0))  # none at all
        """,
    )
    faulty.register(long="slow:Long")
    result = faulty.run("slow.py", "-k", "Short or Long", "--aorta-trials", "2", *TWO, "--timeout", "30", "-v")
    assert faulty.words(result) == {
        "Short[local-none-0]": ["PASSED"],
        "Long[local-none-0]": ["TIMEOUT"],
        "Short[local-none-1]": ["PASSED"],
        "Long[local-none-1]": ["TIMEOUT"],
    }
    # The general limit counts, too, as does ours.
    for limit in (("--timeout", "0.5"), ("--aorta-timeout", "0.5", "--timeout", "30")):
        faulty.write(conftest="")
        result = faulty.run(*workloads("long"), "--aorta-trials", "2", *TWO, *limit)
        result.assert_outcomes(failed=2)
        assert {faulty.trial(path)["exit_status"] for path in faulty.files() if path.startswith("long")} == {"timeout"}
    assert faulty.left_running() == []
