"""What a trial sends passes the check of its host as it is; what is no event does not."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from pytest_aorta.trials.lifecycle import Lifecycle
from pytest_aorta.trials.records import (
    Attempt,
    Event,
    Failure,
    GroupState,
    RankRecord,
    ResultRecord,
    parse_event,
    to_json,
)

FAILURE: Failure = Failure(phase="run", kind="signal", signal="SIGSEGV", message="m", at=1.5, rank=1)
RANK: RankRecord = RankRecord(
    rank=1,
    local_rank=1,
    host="node",
    pid=7,
    signal="SIGSEGV",
    failure=FAILURE,
    result=ResultRecord(True, step_times_ms=[1.0], metrics={"loss": 0.5}),
    stdout="trial_0/rank_1.stdout.log",
)
EVENTS: list[Event] = [
    {"type": "env", "env": {"process": {"pid": 7}}, "launcher_variables": {"RANK": "1"}},
    {"type": "group", "group": GroupState("HEALTHY", 1.5, 0)},
    {"type": "attempt", "attempt": Attempt(0, "membership", FAILURE, [RANK])},
    {"type": "ranks", "ranks": [RANK], "failure": FAILURE, "cleanup": None},
    {"type": "failed", "phase": "launch", "error": {"type": "OSError", "message": "full", "traceback": ""}},
    {"type": "lived", "at": 1.5},
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
def test_an_event_is_read_as_it_was_sent(event: Event) -> None:
    assert parse_event(json.loads(to_json(event))) == event


def test_the_events_of_a_trial_are_read_as_they_were_sent() -> None:
    sent: list[Event] = []
    Lifecycle(Fails, None, sent.append).run_all()

    assert [event["type"] for event in sent] == ["begin", "progress", "end", "begin", "end", "begin", "end"]
    assert [parse_event(json.loads(to_json(event))) for event in sent] == sent


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
