"""Imports: a deadline holds for them, a hang shows where it was, and their time is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage import Stage

from pytest_aorta.launch.host import supervisor
from pytest_aorta.runtime.zygote import StartLimits

#: Hangs with the GIL held, beside a thread and a process of another session.
HANGS = """
import ctypes
import os
import subprocess
import threading

open("imports", "a").write(f"{os.getpid()}\\n")
print("looking for the licence", flush=True)
subprocess.Popen(["sleep", "1000"], start_new_session=True)

def in_a_thread():
    threading.Event().wait()

def wait_for_the_licence():
    ctypes.PyDLL(None).sleep(1000)

threading.Thread(target=in_a_thread, daemon=True).start()
wait_for_the_licence()

class Hangs:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): pass
"""

#: Takes a moment to import, and counts.
SLOW = """
import os
import time

open("imports", "a").write(f"{os.getpid()}\\n")
print("importing", flush=True)
time.sleep(0.1)

class Slow:
    timeout_sec = 30

    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        print("running")
        return {"passed": True, "metrics": {"pid": os.getpid()}}
"""


def imports(stage: Stage) -> list[str]:
    return (stage.path / "imports").read_text().split()


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_an_import_that_hangs_is_a_timeout_of_every_trial_of_its_cell_and_ends_once(
    simple: Stage, isolation: str
) -> None:
    stage = simple
    stage.write(hangs=HANGS)
    files = ("hangs.py", "simple.py", "--aorta-trials", "2")
    result = stage.run_here(*files, "--aorta-isolation", isolation, "--aorta-timeout", "3", "-v")
    words = stage.words(result)
    assert [words[f"Hangs[local-none-{index}]"] for index in range(2)] == [["TIMEOUT"], ["TIMEOUT"]]
    assert [words[f"Simple[local-none-{index}]"] for index in range(2)] == [["PASSED"], ["PASSED"]]
    for index in range(2):
        trial = stage.trial(f"Hangs/trial_{index}.json")
        failure = trial["failure"]
        assert (trial["exit_status"], failure["phase"], failure["kind"]) == ("timeout", "import", "timeout")
        assert failure["message"] == (
            "the deadline of 3 s passed in importing; wait_for_the_licence() at hangs.py line 14"
        )
        assert failure["stacks"] == trial["artifacts"]["stacks"] == f"trial_{index}/stacks.log"
        stacks = (stage.results / "Hangs" / failure["stacks"]).read_text()
        assert "in in_a_thread" in stacks
        assert "in wait_for_the_licence" in stacks
        assert "import" not in trial["phases_sec"]  # it has not ended
        assert "looking for the licence" in "".join(
            (stage.results / "Hangs" / path).read_text()
            for name, path in trial["artifacts"].items()
            if name != "stacks"
        )
    result.stdout.fnmatch_lines(["timeout in import: the deadline of 3 s passed in importing; *", "looking for the *"])
    result.stdout.fnmatch_lines(["Hangs local-none *", "    not counted: 2 did not run (1 event)"])
    assert len(imports(stage)) == 1
    assert stage.left_running() == []


@pytest.mark.slow
def test_an_import_is_once_per_trial_with_spawn_and_once_per_cell_with_fork(stage: Stage) -> None:
    stage.write(slow=SLOW)
    cells = ("--aorta-mitigations", "none", "--aorta-mitigations", "omp_1")
    stage.run_here("slow.py", "--aorta-isolation", "spawn", "--aorta-trials", "2", *cells).assert_outcomes(passed=4)
    trials = stage.trials()
    own = {str(trial["result"]["metrics"]["pid"]) for trial in trials.values()}
    assert len(own) == 4
    assert own < set(imports(stage))
    assert len(imports(stage)) == 4 + 2  # and once to describe each cell
    for path, trial in trials.items():
        assert trial["phases_sec"]["import"] >= 0.1
        assert list(trial["phases_sec"]) == ["launch", "import", "setup", "run", "cleanup"]
        log = (stage.results / Path(path).parent / trial["artifacts"]["stdout"]).read_text()
        assert log == "importing\nrunning\n"
    stage.run_here("slow.py", "--aorta-trials", "3", "--aorta-isolation", "fork").assert_outcomes(passed=3)
    assert len(imports(stage)) == 4 + 2 + 1
    told = [trial["phases_sec"].get("import") for trial in stage.trials().values()]
    assert told[0] >= 0.1
    assert told[1:] == [None, None]
    assert stage.left_running() == []


#: Each rank takes longer to import than its deadline, where it imports for itself.
RANKS = """
import os
import sys
import time

if "RANK" in os.environ:
    time.sleep(11)

class Ranks:
    launch_mode = "distributed"

    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": True}
"""


@pytest.mark.parametrize(
    "launcher", [("--aorta-launcher", "torchrun"), ("--aorta-elastic", "start_method=spawn")], ids=" ".join
)
@pytest.mark.slow
@pytest.mark.long
def test_the_deadline_of_ranks_begins_after_their_imports(stage: Stage, launcher: tuple[str, str]) -> None:
    stage.write(ranks=RANKS)
    result = stage.run("ranks.py", "--aorta-nproc", "2", "--aorta-timeout", "10", *launcher)
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_ranks_that_hang_in_their_imports_did_not_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "start_limits", lambda order: StartLimits(total=9))
    stage.write(ranks=RANKS.replace("11", "1000"))
    result = stage.run_here("ranks.py", "--aorta-nproc", "2", "--aorta-timeout", "5", "--aorta-launcher", "torchrun")
    failure = stage.trial("Ranks/trial_0.json")["failure"]
    assert failure["kind"] == "timeout"
    assert failure["phase"] in ("launch", "import")  # on a busy host, they have not even come so far
    assert failure["message"].startswith("the deadline of 9 s passed in ")
    result.stdout.fnmatch_lines(["*    not counted: 1 did not run"])
