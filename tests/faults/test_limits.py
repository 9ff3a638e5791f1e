"""The limits that a user sets: stalls, memory, logs, grace; and what is kept when one is reached."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage import Stage

FAULTY = Path(__file__).with_name("faulty.py")

#: Reports progress forever, or for a while; says so with a file when it is asked to end.
WORKS = """
import signal
import time

class Works:
    phase, steps = "run", 3

    def __init__(self, config):
        pass

    def setup(self):
        self.work("setup")

    def run(self):
        self.work("run")
        return {"passed": True}

    def cleanup(self):
        self.work("cleanup")

    def work(self, phase):
        if self.phase == phase:
            for step in range(self.steps):
                self.progress(step + 1, 10)
                time.sleep(0.4)
            self.wait()

    def wait(self):
        time.sleep(1000)


class InSetup(Works):
    phase = "setup"


class InCleanup(Works):
    phase = "cleanup"


class Finishes(Works):
    steps = 10

    def wait(self):
        pass


class Resists(Works):
    steps = 0

    def wait(self):
        def told(*_):
            open("told", "w").close()

        signal.signal(signal.SIGTERM, told)
        while True:
            time.sleep(1000)


class Ranks(Works):
    launch_mode = "distributed"
    min_world_size = 2
"""


@pytest.fixture
def works(stage: Stage) -> Stage:
    stage.write(works=WORKS)
    return stage


@pytest.mark.slow
def test_no_progress_for_too_long_is_a_stall_and_progress_keeps_a_trial_alive(works: Stage) -> None:
    """One takes longer than the limit as a whole, but is never without a step for so long."""
    names = [f"works.py::{name}" for name in ("InSetup", "Works", "InCleanup", "Finishes")]
    result = works.run(*names, "-v", "-rA", "-o", "aorta_stall_timeout=3", "--aorta-slots", "4")
    assert works.trial("Finishes/trial_0.json")["exit_status"] == "ok"
    for name, phase in (("InSetup", "setup"), ("Works", "run"), ("InCleanup", "cleanup")):
        trial = works.trial(f"{name}/trial_0.json")
        failure = trial["failure"]
        assert trial["exit_status"] == ("ok" if phase == "cleanup" else "timeout")
        assert (failure["phase"], failure["kind"], failure["stacks"]) == (phase, "stall", "trial_0/stacks.log")
        line = WORKS.split("\n").index("        time.sleep(1000)")
        expected = f"no progress for 3 s in {phase}(), after step 3 of 10; wait() at works.py line {line}"
        assert failure["message"] == expected
        assert f"{expected}\n" in result.stdout.str()
    assert works.words(result)["Works[local-none-0]"] == ["TIMEOUT"]
    assert works.left_running() == []


def test_the_deadline_that_passes_first_is_told(works: Stage) -> None:
    works.run("works.py::Works", "-o", "aorta_stall_timeout=60", "--aorta-timeout", "1")
    assert works.trial("Works/trial_0.json")["failure"]["kind"] == "timeout"


@pytest.mark.slow
def test_ranks_stall_together(works: Stage) -> None:
    works.run("works.py::Ranks", "-o", "aorta_stall_timeout=3", "-o", "aorta_grace=0").assert_outcomes(failed=1)
    trial = works.trial("Ranks/trial_0.json")
    assert (trial["exit_status"], trial["failure"]["kind"]) == ("timeout", "stall")
    assert "rank 0: wait() at works.py line" in trial["failure"]["message"]
    assert [rank["failure"]["kind"] for rank in trial["ranks"]] == ["stall", "stall"]
    assert all((works.results / "Ranks" / rank["stacks"]).stat().st_size > 0 for rank in trial["ranks"])


@pytest.mark.slow
def test_the_grace_is_what_the_user_says(works: Stage) -> None:
    """With none, SIGTERM is not even sent; with one, it is, and what resists is killed all the same."""
    works.run("works.py::Resists", "--aorta-timeout", "2", "-o", "aorta_grace=0").assert_outcomes(failed=1)
    assert not (works.path / "told").exists()
    works.run("works.py::Resists", "--aorta-timeout", "2", "-o", "aorta_grace=1").assert_outcomes(failed=1)
    assert (works.path / "told").exists()
    assert works.left_running() == []


def test_a_gigabyte_of_output(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOOD", str(2**30))
    stage.copy(FAULTY)
    options = ("--aorta-config", "script=floods_stdout-run", "-o", "aorta_log_limit=1M")
    stage.run("faulty.py::Faulty", *options).assert_outcomes(passed=1)
    log = stage.results / "Faulty" / "trial_0" / "stdout.log"
    assert 2**20 < log.stat().st_size < 2**20 + 200
    text = log.read_text()
    assert text.startswith("0000000 0000001 ")
    assert text.endswith(" 0000015 \n")
    [note] = stage.trial("Faulty/trial_0.json")["result"]["failure_details"]
    assert note["note"] == "stdout.log: 1072627712 of 1073676288 bytes were cut; aorta_log_limit keeps 1048576"


def test_memory_is_limited_in_every_process_of_a_trial(stage: Stage) -> None:
    stage.copy(FAULTY)
    script = ("--aorta-config", "script=out_of_memory-run")
    stage.run("faulty.py::Faulty", "faulty.py::FaultyRanks", *script, "--aorta-memory", "3G").assert_outcomes(failed=2)
    for name, rank in (("Faulty", None), ("FaultyRanks", 1)):
        failure = stage.trial(f"{name}/trial_0.json")["failure"]
        assert (failure["phase"], failure["type"], failure["rank"]) == ("run", "MemoryError", rank)


@pytest.mark.slow
@pytest.mark.long
def test_a_thread_of_a_rank_that_never_ends_is_told_with_the_result(stage: Stage) -> None:
    """Success, and then a hang at exit: multiprocessing waits for threads, as an interpreter does."""
    stage.copy(FAULTY)
    options = ("--aorta-config", "script=thread_that_never_ends-run", "--aorta-timeout", "4")
    stage.run("faulty.py::FaultyRanks", *options).assert_outcomes(passed=1, errors=1)
    trial = stage.trial("FaultyRanks/trial_0.json")
    assert (trial["exit_status"], trial["failure"]["phase"], trial["failure"]["kind"]) == ("ok", "cleanup", "timeout")
    assert trial["result"]["metrics"]["total"] > 0
    assert stage.left_running() == []
