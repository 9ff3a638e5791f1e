"""Everything that is known of the ranks of one attempt of a trial, as JSON has it: what ``judge`` has before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from typing_extensions import NotRequired, Required, TypedDict

from pytest_aorta.trials.events import FailureData, Phase, ProgressEvent, ResultData, SeedsData

#: ``script`` is torchrun with a user's script, whose ranks send no events.
Launcher = Literal["elastic", "torchrun", "script", "external"]


class RankExit(TypedDict, total=False):
    """How the process of a rank ended, as its parent saw it.

    ``exitcode`` is negative for a signal, ``at`` in seconds of ``time.time()``, ``sec`` in seconds since the rank's
    start. ``stopped``: whether the agent had asked the rank to end by then; absent where the parent does not know.
    """

    exitcode: Required[int]
    pid: int | None
    at: float
    sec: float
    stopped: bool


class PhaseTimes(TypedDict):
    """When a phase of a rank began and ended, in seconds of ``time.time()``; ``None`` where the rank did not say.

    ``over``: whether it has ended.
    """

    phase: Phase
    began: float | None
    ended: float | None
    over: bool


class RankReport(TypedDict):
    """The event log of a rank. ``finished``: whether its last event is there, which is sent after the last phase."""

    phases: list[PhaseTimes]
    failures: list[FailureData]
    result: ResultData | None
    finished: bool
    finished_at: float | None
    pid: int | None
    progress: ProgressEvent | None
    seeds: SeedsData | None


class WhereItWas(TypedDict):
    """What the stack of a rank shows; ``collective``: the function of ``torch.distributed`` that it was in."""

    text: str
    collective: str | None


class LastCollective(TypedDict):
    """The last collective that a rank has entered, by its flight recorder.

    ``number``: of the collectives of the process group ``group``, from 1.
    """

    name: str
    number: int
    group: str


class RankEvidence(TypedDict):
    """One expected rank.

    ``started``: whether its agent has started it. ``running``: whether it still ran when node 0, whose ranks had ended,
    asked its node. ``overdue``: when its own deadline passed, where each rank has one.
    ``complaint``: what a library has written to its standard error as it ended the process.
    """

    rank: int
    local_rank: int | None
    host: str | None
    started: bool
    running: NotRequired[bool]
    exit: RankExit | None
    report: RankReport | None
    location: WhereItWas | None
    collective: LastCollective | None
    error_file: dict[str, Any] | None
    complaint: str | None
    overdue: float | None
    stdout: str | None
    stderr: str | None
    stacks: str | None


class AgentEnd(TypedDict):
    """How what started the ranks ended. ``error``: what it raised, with ``type``, ``message``, perhaps ``traceback``.

    ``returncode`` is that of a process that was started for it; negative for a signal.
    """

    name: str
    returncode: int | None
    error: NotRequired[dict[str, str]]


class TrialEvidence(TypedDict):
    """One attempt of a trial.

    ``ranks`` are those of all nodes that were expected, ``group`` a name of them that is the same on these nodes and no
    other attempt's. ``network``: which node does not reach the others, when a limit has passed. ``stopped_at``: when
    the agent first asked a rank to end; ``overdue``: when the deadline passed or the trial had stalled, for which
    ``stalled`` is the limit in seconds. Times are seconds of ``time.time()``.
    """

    launcher: Launcher
    attempt: int
    world_size: int | None
    group: NotRequired[str | None]
    network: NotRequired[str | None]
    ranks: list[RankEvidence]
    stopped_at: float | None
    overdue: float | None
    stalled: float | None
    agent: AgentEnd | None


def unknown_rank(rank: int) -> RankEvidence:
    """An expected rank of which there is nothing."""
    return {
        "rank": rank,
        "local_rank": None,
        "host": None,
        "started": False,
        "exit": None,
        "report": None,
        "location": None,
        "collective": None,
        "error_file": None,
        "complaint": None,
        "overdue": None,
        "stdout": None,
        "stderr": None,
        "stacks": None,
    }


def collective_text(last: LastCollective) -> str:
    """As messages have it."""
    return f"{last['name']} number {last['number']}" + ("" if last["group"] == "default_pg" else f" of {last['group']}")


def still_running(trial: TrialEvidence) -> TrialEvidence:
    """The ranks of this node, of which those without an exit still run."""
    ranks: list[RankEvidence] = [{**rank, "running": rank["exit"] is None} for rank in own_ranks(trial)["ranks"]]
    return {**trial, "ranks": ranks}


def with_ranks(trial: TrialEvidence, others: Mapping[int, RankEvidence]) -> TrialEvidence:
    """The evidence of a node with that of the ``others``' ranks."""
    ranks: dict[int, RankEvidence] = {rank["rank"]: rank for rank in trial["ranks"]}
    ranks |= {number: rank for number, rank in others.items() if number not in ranks or not ranks[number]["started"]}
    merged: dict[str, Any] = {**trial, "ranks": [ranks[number] for number in sorted(ranks)]}
    return cast(TrialEvidence, merged)


def own_ranks(trial: TrialEvidence) -> TrialEvidence:
    """Only the ranks of this node."""
    return {**trial, "ranks": [rank for rank in trial["ranks"] if rank["started"]]}
