"""What has to come of the faults of a rank under each launcher: a table of docs/distributed.md.

The fault is rank 1's, of three. Where a launcher cannot know what the others know, ``elsewhere`` has what is said
instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: ``script`` is the fixture ``aorta_torchrun``.
Launcher = Literal["auto", "torchrun", "script", "external"]

LAUNCHERS: tuple[Launcher, ...] = ("auto", "torchrun", "script", "external")


@dataclass(frozen=True)
class Outcome:
    """What a trial file says.

    Attributes:
        status: ``exit_status``.
        kind: of the failure; ``None`` where there is none.
        detail: its signal, exit code, or the type of its exception.
        says: what its message contains.
        rank: the cause, whose failure it is; ``None`` where it is not known, and the failure is that of a rank that
            has waited for it.
        phase: of the failure; not looked at where a script has none.
    """

    status: str
    kind: str | None = None
    detail: str | int | None = None
    says: str = ""
    rank: int | None = 1
    phase: str = "run"

    @property
    def words(self) -> str:
        """As a cell of the table."""
        if self.kind is None:
            return self.status
        detail = "" if self.detail is None else f" {self.detail}"
        rank = "a rank that waited" if self.rank is None else f"rank {self.rank}"
        return f"{self.status}: {rank}, {self.kind}{detail}"


@dataclass(frozen=True)
class RankFault:
    """A part of ``support/rank_faults.py``.

    Attributes:
        part: its name.
        means: what the row of the table says.
        outcome: under the launchers that know.
        elsewhere: under others.
        hangs: whether it is ended by the deadline.
        restarts: how often all ranks are started again.
    """

    part: str
    means: str
    outcome: Outcome
    elsewhere: Mapping[Launcher, Outcome] = field(default_factory=dict)
    hangs: bool = False
    restarts: int = 0

    def under(self, launcher: Launcher) -> Outcome:
        """What comes of it there."""
        return self.elsewhere.get(launcher, self.outcome)


RANK_FAULTS = (
    RankFault(
        "raises",
        "exception",
        Outcome("workload_failed", "exception", "ValueError", "rank 1 has a bug"),
    ),
    RankFault("segfaults", "segmentation fault", Outcome("workload_failed", "signal", "SIGSEGV", "ended by SIGSEGV")),
    RankFault(
        "killed_by_another",
        "SIGKILL from outside, as from a kernel short of memory",
        Outcome("workload_failed", "signal", "SIGKILL", "ended by SIGKILL"),
    ),
    RankFault(
        "terminated_by_another",
        "SIGTERM from outside",
        Outcome("workload_failed", "signal", "SIGTERM", ", which its agent had not sent"),
    ),
    RankFault("exits_3", "`os._exit(3)`", Outcome("workload_failed", "exit_code", 3, "ended itself with exit code 3")),
    RankFault(
        "leaves_before_init",
        "`os._exit(0)` before `init_process_group()`",
        Outcome("infrastructure_failed", "exit_code", 0, "ended itself with exit code 0 in setup()", phase="setup"),
        {"script": Outcome("workload_failed", "exit_code", 0, "ended itself with exit code 0 in run()")},
    ),
    RankFault(
        "raises_late",
        "exception when the other ranks are done",
        Outcome("workload_failed", "exception", "ValueError", "rank 1 has a late bug"),
    ),
    RankFault(
        "gives_up",
        "the process group's own timeout passes, before the deadline",
        Outcome("workload_failed", "exception", "RuntimeError", "rank 1 is missing: play_alone() at rank_faults.py"),
        {
            "external": Outcome("timeout", "timeout", None, "play_alone() at rank_faults.py"),
        },
    ),
    RankFault(
        "sleeps",
        "a hang before a collective",
        Outcome("timeout", "timeout", None, "rank 1 is missing: play_alone() at rank_faults.py"),
        hangs=True,
    ),
    RankFault(
        "blocked_with_the_gil",
        "a hang in C, with the GIL held",
        Outcome("timeout", "timeout", None, "play_alone() at rank_faults.py"),
        hangs=True,
    ),
    RankFault("raises_once", "exception, and a restart that passes", Outcome("ok"), restarts=1),
    RankFault(
        "raises",
        "exception, and again after a restart",
        Outcome("workload_failed", "exception", "ValueError", "rank 1 has a bug"),
        restarts=1,
    ),
)


def as_markdown() -> str:
    """The table for readers."""
    lines = ["| rank 1 | `auto`, `torchrun` | `aorta_torchrun` (scripts) | `external` |", "|---|---|---|---|"]
    for fault in RANK_FAULTS:
        known = {fault.under("auto").words, fault.under("torchrun").words}
        cells = [", ".join(known), fault.under("script").words, fault.under("external").words]
        lines.append(f"| {fault.means} | {' | '.join(cells)} |")
    return "\n".join(lines)
