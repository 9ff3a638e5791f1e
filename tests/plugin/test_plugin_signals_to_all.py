"""Signals that a batch system sends to all processes of its job: what pytest makes of them is what is recorded."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.stage import Stage

FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"

#: Pytest first, as batch systems do that begin with the oldest process, or last.
ORDERS: dict[str, Callable[[list[psutil.Process]], list[psutil.Process]]] = {
    "oldest_first": lambda processes: sorted(processes, key=lambda process: process.pid),
    "newest_first": lambda processes: sorted(processes, key=lambda process: -process.pid),
}

NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "KeyboardInterrupt"}


def send_to_all(stage: Stage, number: signal.Signals, order: str) -> None:
    for process in ORDERS[order](stage.processes()):
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("number", NAMES)
def test_a_trial_is_interrupted(
    waits: Stage, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, order: str
) -> None:
    monkeypatch.setenv("WAIT_IN", "run")
    process = waits.start("waits.py", "--aorta-trials", "4")
    waits.wait_until((waits.path / "waiting").exists)
    send_to_all(waits, number, order)
    ended = waits.finish(process)
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    assert "Traceback" not in str(ended.stdout) + str(ended.stderr)
    assert list(waits.statuses().values()) == ["ok", "ok", "infrastructure_failed"]
    assert waits.trial("Waits/trial_2.json")["failure"]["message"] == f"interrupted: {NAMES[number]}"
    assert waits.left_running() == []


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("number", NAMES)
def test_ranks_are_interrupted(stage: Stage, number: signal.Signals, order: str) -> None:
    stage.copy(FAULTS)
    process = stage.start("rank_faults.py::RankFaults", "--aorta-config", "script=waits_for_a_file")
    stage.wait_until((stage.path / "waits").exists)
    send_to_all(stage, number, order)
    ended = stage.finish(process)
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    trial = stage.trial("RankFaults/trial_0.json")
    assert (trial["exit_status"], trial["result"]["passed"]) == ("infrastructure_failed", False)
    assert trial["failure"]["message"] == f"interrupted: {NAMES[number]}"
    assert stage.left_running() == []


@pytest.mark.slow
def test_the_result_of_rank_0_is_not_that_of_a_trial_whose_other_ranks_were_interrupted(stage: Stage) -> None:
    stage.copy(FAULTS)
    process = stage.start("rank_faults.py::RankFaults", "--aorta-config", "script=lingers", "--aorta-nproc", "3")
    stage.wait_until((stage.path / "lingers").exists)
    process.send_signal(signal.SIGTERM)
    assert stage.finish(process).ret == pytest.ExitCode.INTERRUPTED
    trial = stage.trial("RankFaults/trial_0.json")
    assert (trial["exit_status"], trial["result"]["passed"]) == ("infrastructure_failed", False)
    assert trial["failure"]["message"] == "interrupted: SIGTERM"
    assert stage.left_running() == []
