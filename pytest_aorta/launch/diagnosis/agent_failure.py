"""The failure of what has started the ranks, in its own words, with the option that mends it; pure."""

from __future__ import annotations

import re

from pytest_aorta.launch.diagnosis.trial_evidence import AgentEnd, TrialEvidence
from pytest_aorta.trials.events import FailureData, Phase
from pytest_aorta.trials.outcome import place, signal_name

#: What an error of the agent says, and what helps.
_HINTS = (
    (
        r"is not registered",
        "--aorta-elastic rdzv_backend= takes c10d or static",
    ),
    (
        r"EADDRINUSE|[Aa]ddress already in use|failed to listen",
        "give a free port of node 0 with --aorta-elastic rdzv_endpoint=HOST:PORT, on every node",
    ),
    (
        r"RendezvousConnectionError|RendezvousStateError|client socket has|DistNetworkError",
        "node 0 cannot be reached at --aorta-elastic rdzv_endpoint=HOST:PORT, or has gone",
    ),
    (
        r"RendezvousTimeoutError|RendezvousGracefulExitError|RendezvousClosedError",
        "run the same pytest on as many nodes as --aorta-elastic nnodes= says, at the same time, or allow fewer with "
        "nnodes=MIN:MAX",
    ),
    (
        r"uninterruptible sleep",
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT sets how long the agent looks on",
    ),
)


def agent_failure(trial: TrialEvidence) -> FailureData | None:
    """Why the agent ended, unless it ended as it should.

    One that was ended, and one in a process of its own, failed in the phase that the first rank was in.
    """
    agent = trial["agent"]
    if agent is None:
        return None
    phase = phase_of(trial)
    if agent["returncode"] is not None and agent["returncode"] < 0:
        name = signal_name(-agent["returncode"])
        message = f"{agent['name']} was ended by {name} in {place(phase)}"
        return {"phase": phase, "kind": "signal", "signal": name, "message": message, "rank": None}
    if "error" in agent:
        return _raised(agent)
    if agent["returncode"]:
        message = f"{agent['name']} ended with exit code {agent['returncode']}; see stderr"
        code = agent["returncode"]
        return {"phase": phase, "kind": "exit_code", "exit_code": code, "message": message, "rank": None}
    return None


def _raised(agent: AgentEnd) -> FailureData:
    error = agent["error"]
    text = f"{error.get('type', '')}: {error['message']}"
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, text)), None)
    message = f"{agent['name']} failed: {error['message']}" + ("" if hint is None else f"; {hint}")
    failure: FailureData = {"phase": "launch", "kind": "exception", "message": message, "rank": None}
    if "type" in error:
        failure["type"] = error["type"]
    if "traceback" in error:
        failure["traceback"] = error["traceback"]
    return failure


def phase_of(trial: TrialEvidence) -> Phase:
    """The phase that the first rank was in; ``setup`` before it said so."""
    reports = [rank["report"] for rank in sorted(trial["ranks"], key=lambda rank: rank["rank"]) if rank["report"]]
    begun = [report["phases"][-1]["phase"] for report in reports if report and report["phases"]]
    if begun:
        return begun[0]
    ready = trial["launcher"] == "script" and bool(reports)
    return "run" if ready else "setup"
