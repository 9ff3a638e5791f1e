"""Runs that end early: by Ctrl-C, a batch system's signals, -x, or the end of pytest itself."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

import psutil
import pytest
from support.neighbourhood import leave, notes, workloads
from support.stage import Stage, text

FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"
THREE = ("--aorta-trials", "6", "--aorta-slots", "3")


@pytest.mark.parametrize("phase", [pytest.param("setup", marks=[pytest.mark.slow, pytest.mark.long]), "run", "cleanup"])
def test_ctrl_c_keeps_what_is_finished_and_records_what_was_running(
    waits: Stage, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setenv("WAIT_IN", phase)
    process = waits.start("waits.py", "--aorta-trials", "5")
    waits.wait_until((waits.path / "waiting").exists)
    output = waits.press_ctrl_c(process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "! KeyboardInterrupt !" in output
    assert "results: results" in output
    assert ("not counted: 1 interrupted\n" in output.replace("\r", "")) == (phase != "cleanup")
    trial = waits.trial("Waits/trial_2.json")
    failure = trial["failure"]
    assert (failure["phase"], failure["kind"]) == (phase, "signal")
    assert failure["message"].startswith("interrupted")
    assert trial["artifacts"].keys() >= {"stdout", "stderr"}
    # What was there already is not taken back.
    status, metrics = ("ok", {"index": 2}) if phase == "cleanup" else ("infrastructure_failed", {})
    assert trial["result"]["metrics"] == metrics
    assert waits.statuses() == {f"Waits/trial_{index}.json": each for index, each in enumerate(("ok", "ok", status))}
    assert waits.left_running() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "hook", ["pytest_runtest_setup", pytest.param("pytest_runtest_teardown", marks=pytest.mark.long)]
)
def test_an_interrupt_between_two_phases(waits: Stage, monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    monkeypatch.setenv("WAIT_IN", "nothing")
    waits.write(
        conftest=f"""
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def {hook}(item):
            if item.name.endswith("-2]"):
                raise KeyboardInterrupt
        """
    )
    result = waits.run("waits.py", "--aorta-trials", "4")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    interrupted = hook != "pytest_runtest_teardown"  # by then, it has its result
    assert list(waits.statuses().values()) == ["ok", "ok", "infrastructure_failed" if interrupted else "ok"]
    if interrupted:
        assert waits.trial("Waits/trial_2.json")["failure"]["message"] == "interrupted: KeyboardInterrupt"
    assert waits.left_running() == []


def test_an_interrupt_waits_for_the_end_of_the_engines_import(waits: Stage) -> None:
    """Python would end with SIGINT's own status, as if it had not been caught."""
    waits.write(
        conftest="""
        import sys

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "pytest_aorta.launch.engine":
                    sys.meta_path.remove(self)
                    exec("import os, signal\\nos.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(100): pass")

        sys.meta_path.insert(0, Finder())
        """
    )
    waits.register(waits="waits:Waits")
    process = waits.start("--aorta-workload", "waits")
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "! KeyboardInterrupt !" in output
    assert waits.files() == []


# Trials side by side


def test_the_first_failure_ends_what_runs_and_starts_nothing(beside: Stage) -> None:
    leave(beside, "calm")
    options = (*workloads("fails", "stays"), "--aorta-trials", "4", "--aorta-slots", "3")
    beside.run_here(*options).assert_outcomes(passed=8)
    (beside.path / "notes" / "calm_").unlink()
    for note in (beside.path / "notes").glob("started*"):
        note.unlink()
    result = beside.run_here(*options, "-x")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    assert beside.left_running() == []
    trials = beside.trials()
    assert trials["fails/trial_0.json"]["exit_status"] == "workload_failed"
    killed = [
        trial["failure"]["message"] for trial in trials.values() if trial["exit_status"] == "infrastructure_failed"
    ]
    assert set(killed) == {"interrupted: stopping after 1 failures"}
    # A trial has one new file, and its earlier one is in the history, exactly when it was started; and not all were,
    # for those that stay hold all slots.
    started = sorted(path for path, trial in trials.items() if trial["exit_status"] != "ok")
    assert len(started) < 8
    assert sorted(beside.earlier()) == started
    # Some were ended before they could leave a note.
    assert 2 <= notes(beside, "started-Fails") + notes(beside, "started-Stays") <= len(started)


@pytest.mark.parametrize(
    "how", [THREE, pytest.param(("--aorta-trials", "5", "-n", "3"), marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_ctrl_c_records_all_that_runs(beside: Stage, how: tuple[str, ...]) -> None:
    process = beside.start(*workloads("stays"), *how)
    beside.wait_until(lambda: notes(beside, "stays") == 3)
    output = beside.press_ctrl_c(process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "! KeyboardInterrupt !" in output or "-n" in how
    failures = [trial["failure"] for trial in beside.trials().values()]
    assert len(failures) == 3
    # The controller of xdist knows only that its workers' trials were launched.
    assert {failure["phase"] for failure in failures} == {"launch" if "-n" in how else "run"}
    assert all(failure["message"].startswith("interrupted") for failure in failures)
    assert notes(beside, "started-Stays") == 3
    beside.wait_until(lambda: not beside.left_running())


# Signals that a batch system sends to all processes of its job: what pytest makes of them is what is recorded

NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "KeyboardInterrupt"}


def send_to_all(stage: Stage, number: signal.Signals, *, newest_first: bool = False) -> None:
    """Pytest first, as batch systems do that begin with the oldest process, or last."""
    for process in sorted(stage.processes(), key=lambda process: process.pid, reverse=newest_first):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@pytest.mark.parametrize(
    ("number", "newest_first"),
    [(signal.SIGTERM, False), pytest.param(signal.SIGINT, True, marks=pytest.mark.slow)],
)
def test_a_signal_to_all_processes_interrupts_a_trial(
    waits: Stage, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, newest_first: bool
) -> None:
    monkeypatch.setenv("WAIT_IN", "run")
    process = waits.start("waits.py", "--aorta-trials", "4")
    waits.wait_until((waits.path / "waiting").exists)
    send_to_all(waits, number, newest_first=newest_first)
    ended = waits.finish(process)
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    assert "Traceback" not in str(ended.stdout) + str(ended.stderr)
    assert list(waits.statuses().values()) == ["ok", "ok", "infrastructure_failed"]
    assert waits.trial("Waits/trial_2.json")["failure"]["message"] == f"interrupted: {NAMES[number]}"
    assert waits.left_running() == []


@pytest.mark.slow
def test_a_signal_that_reaches_pytest_after_the_end_of_the_trial_has_ended_both(
    waits: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAIT_IN", "run")
    process = waits.start("waits.py", "--aorta-trials", "4", "-o", "aorta_grace=60")
    waits.wait_until((waits.path / "waiting").exists)
    for each in waits.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.pid != process.pid:
                each.send_signal(signal.SIGTERM)
    waits.wait_until((waits.results / "Waits/trial_2.json").exists)
    process.send_signal(signal.SIGTERM)
    # The next one may have begun.
    assert re.search("not counted: [12] interrupted", text(waits.finish(process)))
    trial = waits.trial("Waits/trial_2.json")
    assert (trial["exit_status"], trial["failure"]["message"]) == ("infrastructure_failed", "interrupted: SIGTERM")
    assert trial["artifacts"].keys() >= {"stdout", "stderr"}
    assert waits.left_running() == []


KILLED = """
import os, signal

class Killed:
    def __init__(self, config):
        pass
    def setup(self):
        pass
    def run(self):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("in_job_of_recipe", [False, True])
def test_in_a_batch_job_a_trial_is_in_doubt_until_somebody_knows_of_the_end_of_the_job(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, in_job_of_recipe: bool
) -> None:
    stage.write(killed=KILLED)
    monkeypatch.setenv("SLURM_JOB_ID", "77")  # no scheduler answers here
    if in_job_of_recipe:
        monkeypatch.setenv("AORTA_JOB", str(stage.path / "job"))
    result = stage.run_here("killed.py", "--aorta-trials", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    failures = [trial["failure"] for trial in stage.trials().values()]
    assert [failure["in_doubt"] for failure in failures] == [True if in_job_of_recipe else None] * 2
    assert ("not counted: 2 in doubt" in text(result)) == in_job_of_recipe
    assert ("2 of 2" in text(result)) == (not in_job_of_recipe)
    assert set(stage.statuses().values()) == {"workload_failed"}


@pytest.mark.slow
@pytest.mark.parametrize("script", ["lingers", pytest.param("waits_for_a_file", marks=pytest.mark.long)])
def test_and_ranks_also_where_rank_0_has_its_result(stage: Stage, script: str) -> None:
    stage.copy(FAULTS)
    process = stage.start("rank_faults.py::RankFaults", "--aorta-config", f"script={script}")
    if script == "lingers":
        stage.wait_for_file("lingers")
        process.send_signal(signal.SIGTERM)
    else:
        stage.wait_for_file("waits")
        send_to_all(stage, signal.SIGTERM)
    assert stage.finish(process).ret == pytest.ExitCode.INTERRUPTED
    trial = stage.trial("RankFaults/trial_0.json")
    assert (trial["exit_status"], trial["result"]["passed"]) == ("infrastructure_failed", False)
    assert trial["failure"]["message"] == "interrupted: SIGTERM"
    assert stage.left_running() == []
