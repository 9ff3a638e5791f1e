"""Everything that is known of the ranks of one attempt of a trial; ``judge`` reads nothing else.

Every launcher fills these types. Nodes exchange them as JSON, and a failed trial keeps them in ``evidence.json``.
Times are seconds of ``time.time()``; codes are negative for a signal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pytest_aorta.common.texts import format_ranges
from pytest_aorta.trials.outcome import Observation
from pytest_aorta.trials.records import Event, Failure

if TYPE_CHECKING:
    from pydantic import TypeAdapter

#: ``script`` is torchrun with a user's script, whose ranks send no events.
Launcher = Literal["elastic", "torchrun", "script", "external"]


def rank_names(ranks: Collection[int]) -> str:
    """``rank 1``, ``ranks 0-2,5``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranges(ranks)}"


@dataclass
class RankExit:
    """How the process of a rank ended, as its parent saw it.

    ``sec``: seconds after the rank's start. ``stopped``: whether the agent had asked the rank to end by then; ``None``
    if the parent does not know.
    """

    exitcode: int
    pid: int | None = None
    at: float | None = None
    sec: float = 0.0
    stopped: bool | None = None


@dataclass
class Location:
    """Where a process was: ``all_reduce in step() at fsdp.py line 88``.

    ``collective``: the function of ``torch.distributed`` in which it was, if it was in one.
    """

    text: str
    collective: str | None = None


@dataclass
class Collective:
    """A collective that a rank has entered, by its flight recorder; ``number`` counts those of its ``group``.

    ``of``: its tensors (``Float[4]``), which must be equal in all ranks of the group. ``size``: size of the group, if
    the recorder knows it. ``at``: when it was entered, in nanoseconds of its host's clock.
    """

    name: str
    number: int
    group: str
    of: str = ""
    size: int | None = None
    at: int | None = None

    def __str__(self) -> str:
        return f"{self.name} number {self.number}" + ("" if self.group == "default_pg" else f" of {self.group}")


@dataclass
class Wait:
    """A call of ``torch.distributed`` that has not returned, and the ranks that must take part before it can.

    ``peers``: the peer of a ``send`` or ``recv``, else all other ``members`` of the group.
    """

    call: str
    peers: list[int]
    members: list[int]

    @property
    def is_collective(self) -> bool:
        return "send" not in self.call and "recv" not in self.call


@dataclass
class RankEvidence:
    """One expected rank: what each writer of evidence fills, and all that the judge reads of it.

    ``started``: whether its agent has started it. ``running``: whether it still ran when node 0, whose own ranks had
    ended, asked its node. ``events``: its event log; ``None`` without one. ``imports``: whether it was importing a
    library. ``collectives``: the last ones that it entered, in order. ``wait``: the call in which it was, or which
    raised. ``complaint``: what a library wrote to standard error as it ended the process. ``said``: the exception that
    it logged last, with the time of the log's last write. ``last_line``: its last line, if it exited by itself.
    ``stopped_at``: when the agent of another node first asked a rank to end. ``overdue``: when its own deadline passed,
    if each rank has one. ``stdout``, ``stderr``, ``stacks``: paths of its logs.
    """

    rank: int
    local_rank: int | None = None
    host: str | None = None
    started: bool = False
    running: bool = False
    exit: RankExit | None = None
    events: list[Event] | None = None
    location: Location | None = None
    imports: bool = False
    collectives: list[Collective] = field(default_factory=list)
    wait: Wait | None = None
    error_file: dict[str, Any] | None = None
    complaint: str | None = None
    said: Failure | None = None
    last_line: str | None = None
    stopped_at: float | None = None
    overdue: float | None = None
    stdout: str | None = None
    stderr: str | None = None
    stacks: str | None = None

    @property
    def is_heard_of(self) -> bool:
        """Whether anything is known of it."""
        return self.started or self.exit is not None or self.events is not None

    @property
    def collective(self) -> Collective | None:
        """The last collective that it has entered."""
        return self.collectives[-1] if self.collectives else None

    def seen(self, until: float | None = None) -> Observation:
        """What it reported up to a time.

        Reports after its deadline follow from the signals that ask for its stacks and end it, because these interrupt
        its system calls.
        """
        seen = Observation()
        for event in self.events or ():
            failure = event.get("failure")
            at = event.get("at") if failure is None or failure.at is None else failure.at
            if until is None or at is None or at <= until:
                seen.see(event)
        return seen


@dataclass
class AgentEnd:
    """How the agent that started the ranks ended, if it did not end as it should.

    ``error``: what it raised, with ``type``, ``message``, perhaps ``traceback``. ``returncode``: of its process, if it
    had one of its own.
    """

    name: str
    returncode: int | None = None
    error: dict[str, str] | None = None


@dataclass
class AttemptEvidence:
    """One attempt of a trial.

    ``ranks``: all expected ranks of all nodes. ``group``: a name that is equal on all these nodes and differs from
    other attempts'. ``network``: which node did not reach the others when a limit passed. ``stopped_at``: when the
    agent first asked a rank to end. ``overdue``: when the deadline or the stall limit passed. ``stalled``: the stall
    limit in seconds, if that is the one.
    """

    launcher: Launcher
    attempt: int = 0
    world_size: int | None = None
    group: str | None = None
    network: str | None = None
    ranks: list[RankEvidence] = field(default_factory=list)
    stopped_at: float | None = None
    overdue: float | None = None
    stalled: float | None = None
    agent: AgentEnd | None = None

    def own_ranks(self, *, still_running: bool = False) -> list[RankEvidence]:
        """The ranks of this node; with ``still_running``, ranks without an exit are marked as running."""
        own = [replace(rank, stopped_at=self.stopped_at) for rank in self.ranks if rank.started]
        return [replace(rank, running=rank.exit is None) for rank in own] if still_running else own

    def with_ranks(self, others: Iterable[RankEvidence]) -> AttemptEvidence:
        """This evidence with the ranks of other nodes added."""
        ranks = {rank.rank: rank for rank in self.ranks}
        ranks |= {rank.rank: rank for rank in others if rank.rank not in ranks or not ranks[rank.rank].started}
        return replace(self, ranks=[ranks[number] for number in sorted(ranks)])

    @classmethod
    def from_json(cls, text: str | bytes) -> AttemptEvidence:
        """Read what ``records.to_json`` has written; raises ``ValueError`` for anything else."""
        return _adapter().validate_json(text)


@cache
def _adapter() -> TypeAdapter[AttemptEvidence]:
    from pydantic import TypeAdapter  # not in every rank

    return TypeAdapter(AttemptEvidence)
