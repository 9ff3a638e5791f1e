"""Runs of trials side by side that end early: by -x, Ctrl-C, a kill, or pytest.exit()."""

from __future__ import annotations

import signal

import pytest
from support.neighbourhood import leave, notes, workloads
from support.stage import Stage


def test_first_failure_ends_what_runs_and_starts_nothing(beside: Stage) -> None:
    leave(beside, "calm")
    options = (*workloads("fails", "stays"), "--aorta-trials", "4", "--aorta-slots", "3")
    beside.run(*options).assert_outcomes(passed=8)
    (beside.path / "notes" / "calm_").unlink()
    for note in (beside.path / "notes").glob("started*"):
        note.unlink()
    result = beside.run(*options, "-x")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    assert beside.left_running() == []
    trials = beside.trials()
    assert trials["fails/trial_0.json"]["exit_status"] == "workload_failed"
    killed = [
        trial["failure"]["message"] for trial in trials.values() if trial["exit_status"] == "infrastructure_failed"
    ]
    assert killed == ["interrupted: stopping after 1 failures"] * len(killed)
    assert killed
    # A trial has one new file, and its earlier one is in the history, exactly when it was started; and not all were,
    # for those that stay hold all slots.
    started = sorted(path for path, trial in trials.items() if trial["exit_status"] != "ok")
    assert len(started) < 8
    assert sorted(beside.earlier()) == started
    # Some were ended before they could leave a note.
    assert 2 <= notes(beside, "started-Fails") + notes(beside, "started-Stays") <= len(started)


def test_ctrl_c_records_all_that_runs(beside: Stage) -> None:
    process = beside.start(*workloads("stays"), "--aorta-trials", "6", "--aorta-slots", "3")
    beside.wait_until(lambda: notes(beside, "stays") == 3)
    output = beside.press_ctrl_c(process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "! KeyboardInterrupt !" in output
    assert beside.statuses() == {f"stays/trial_{index}.json": "infrastructure_failed" for index in range(3)}
    failures = [trial["failure"] for trial in beside.trials().values()]
    assert {(failure["phase"], failure["message"]) for failure in failures} == {
        ("run", "interrupted: KeyboardInterrupt")
    }
    assert notes(beside, "started-Stays") == 3
    assert beside.left_running() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_pytest(beside: Stage, number: int) -> None:
    process = beside.start(*workloads("stays"), "--aorta-trials", "6", "--aorta-slots", "3")
    beside.wait_until(lambda: notes(beside, "stays") == 3)
    process.send_signal(number)
    process.communicate(timeout=60)
    beside.wait_until(lambda: not beside.left_running())
    if number == signal.SIGTERM:  # pytest ends in order
        assert set(beside.statuses().values()) == {"infrastructure_failed"}
        assert len(beside.statuses()) == 3
    else:
        assert beside.files() == []
