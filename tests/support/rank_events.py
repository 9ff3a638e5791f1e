"""The events of ranks, as their event logs have them."""

from __future__ import annotations

from pytest_aorta.trials.records import Event, Failure, Phase, ResultRecord

SETUP_DONE: list[Event] = [
    {"type": "begin", "phase": "setup"},
    {"type": "end", "phase": "setup", "sec": 0.1},
    {"type": "begin", "phase": "run"},
]
CLEANED_UP: list[Event] = [
    {"type": "begin", "phase": "cleanup"},
    {"type": "end", "phase": "cleanup", "sec": 0.1},
    {"type": "lived"},
]


def returned(passed: bool, first_failure: int | None = None, names: object = None) -> list[Event]:
    """All events of a rank whose run() returned; ``first_failure`` is an iteration, ``names`` a rank."""
    details = (
        [] if names is None else [{"rank": names, "iteration": "third" if isinstance(names, str) else first_failure}]
    )
    result = ResultRecord(passed=passed, first_failure_iteration=first_failure, failure_details=details)
    return [
        *SETUP_DONE,
        {"type": "end", "phase": "run", "sec": 0.1, "result": result},
        *CLEANED_UP,
    ]


def raised(message: str, at: float = 0.0, phase: Phase = "run", kind: str = "RuntimeError") -> list[Event]:
    """All events of a rank of which a phase raised."""
    failure: Failure = Failure(phase=phase, kind="exception", type=kind, message=message, at=at)
    begin = SETUP_DONE if phase == "run" else []
    end: list[Event] = [{"type": "end", "phase": phase, "sec": 0.1, "failure": failure}]
    if phase == "cleanup":
        return [*returned(True)[:4], {"type": "begin", "phase": "cleanup"}, *end, {"type": "lived"}]
    return [*begin, *end, *CLEANED_UP]
