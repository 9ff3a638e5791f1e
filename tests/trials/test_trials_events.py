"""What a trial sends passes the check of its host as it is; what is no event does not."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from pytest_aorta.trials.events import FailureData, RankData, TrialEvent, parse_event
from pytest_aorta.trials.lifecycle import Lifecycle

FAILURE: FailureData = {"phase": "run", "kind": "signal", "signal": "SIGSEGV", "message": "m", "at": 1.5, "rank": 1}
RANK: RankData = {
    "rank": 1,
    "local_rank": 1,
    "host": "node",
    "pid": 7,
    "exit_code": None,
    "signal": "SIGSEGV",
    "passed": None,
    "failure": FAILURE,
    "collateral": False,
    "error_file": None,
    "result": {"passed": True, "step_times_ms": [1.0], "metrics": {"loss": 0.5}},
    "stdout": "trial_0/rank_1.stdout.log",
    "stderr": None,
    "stacks": None,
}
EVENTS: list[TrialEvent] = [
    {"type": "env", "env": {"process": {"pid": 7}}, "launcher_variables": {"RANK": "1"}},
    {"type": "group", "state": "HEALTHY", "at": 1.5, "attempt": 0, "world_size": None},
    {"type": "attempt", "attempt": 0, "reason": "membership", "ranks": [RANK], "failure": FAILURE},
    {"type": "ranks", "ranks": [RANK], "failure": FAILURE, "cleanup": None},
    {"type": "failed", "phase": "launch", "error": {"type": "OSError", "message": "full", "traceback": ""}},
    {"type": "lived", "at": 1.5},
    {"type": "over", "returncode": -9, "overdue": None},
]


class Fails:
    def __init__(self, config: Any) -> None:
        self.progress: Any = None

    def setup(self) -> None:
        self.progress(1, 2)

    def run(self) -> dict[str, Any]:
        return {"passed": False, "failure_count": 2, "metrics": {"loss": "NaN"}, "step_times_ms": [1.0, 2.5]}

    def cleanup(self) -> None:
        sys.exit(3)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event["type"])
def test_an_event_is_read_as_it_was_sent(event: TrialEvent) -> None:
    assert parse_event(json.loads(json.dumps(event))) == event


def test_the_events_of_a_trial_are_read_as_they_were_sent() -> None:
    sent: list[TrialEvent] = []
    Lifecycle(Fails, None, sent.append).run_all()

    assert [event["type"] for event in sent] == ["begin", "progress", "end", "begin", "end", "begin", "end"]
    assert [parse_event(json.loads(json.dumps(event))) for event in sent] == sent


@pytest.mark.parametrize(
    "data",
    [None, {}, {"type": "end"}, {"type": "begin", "phase": "lunch"}, {"type": "ranks", "ranks": [{}], "failure": None}],
)
def test_what_is_no_event_is_refused(data: object) -> None:
    with pytest.raises(ValueError):
        parse_event(data)


def test_a_child_sends_events_without_pydantic() -> None:
    code = "import sys, pytest_aorta.trials.lifecycle; sys.exit('pydantic' in sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True)
