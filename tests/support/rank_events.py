"""The events of ranks, as their event logs have them."""

from __future__ import annotations

from pytest_aorta.trials.events import FailureData, Phase, TrialEvent

SETUP_DONE: list[TrialEvent] = [
    {"type": "begin", "phase": "setup"},
    {"type": "end", "phase": "setup", "sec": 0.1},
    {"type": "begin", "phase": "run"},
]
CLEANED_UP: list[TrialEvent] = [
    {"type": "begin", "phase": "cleanup"},
    {"type": "end", "phase": "cleanup", "sec": 0.1},
    {"type": "lived"},
]


def returned(passed: bool) -> list[TrialEvent]:
    """All events of a rank whose run() returned."""
    return [*SETUP_DONE, {"type": "end", "phase": "run", "sec": 0.1, "result": {"passed": passed}}, *CLEANED_UP]


def raised(message: str, at: float = 0.0, phase: Phase = "run") -> list[TrialEvent]:
    """All events of a rank of which a phase raised."""
    failure: FailureData = {"phase": phase, "kind": "exception", "type": "RuntimeError", "message": message, "at": at}
    begin = SETUP_DONE if phase == "run" else []
    end: list[TrialEvent] = [{"type": "end", "phase": phase, "sec": 0.1, "failure": failure}]
    if phase == "cleanup":
        return [*returned(True)[:4], {"type": "begin", "phase": "cleanup"}, *end, {"type": "lived"}]
    return [*begin, *end, *CLEANED_UP]
