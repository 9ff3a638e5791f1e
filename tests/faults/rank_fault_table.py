"""What has to come of the faults of a rank under each launcher: a table of docs/distributed.md.

The fault is rank 1's, of three. Where a launcher cannot know what the others know, ``elsewhere`` has what is said
instead, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: Of a workload class: ``auto``, ``torchrun``, ``external``. Of a script: ``script`` (the fixture ``aorta_torchrun``),
#: ``nproc`` (a command with ``--aorta-nproc``), and commands that start their ranks themselves.
Launcher = Literal["auto", "torchrun", "external", "script", "nproc", "torchrun line", "accelerate line", "spawn"]

LAUNCHERS: Mapping[Launcher, str] = {
    "auto": "`auto`",
    "torchrun": "`torchrun`",
    "external": "`external`",
    "script": "`aorta_torchrun`",
    "nproc": "`--aorta-nproc`",
    "torchrun line": "`torchrun` in the command",
    "accelerate line": "`accelerate launch` in the command",
    "spawn": "`torch.multiprocessing.spawn` in the command",
}

SCRIPTS: tuple[Launcher, ...] = ("script", "nproc", "torchrun line", "accelerate line", "spawn")


@dataclass(frozen=True)
class Outcome:
    """What a trial file says.

    Attributes:
        status: ``exit_status``.
        kind: of the failure; ``None`` where there is none.
        detail: its signal, exit code, or the type of its exception.
        says: what its message contains.
        signature: as the table calls the failure, without numbers of lines.
        rank: the cause, whose failure it is; ``None`` where it is not known, and the failure is that of a rank that
            has waited for it.
        phase: of the failure; not looked at where a script has none.
        why: it differs from what is known under ``auto``.
    """

    status: str
    kind: str | None = None
    detail: str | int | None = None
    says: str = ""
    signature: str = ""
    rank: int | None = 1
    phase: str = "run"
    why: str = ""

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

    @property
    def name(self) -> str:
        return self.part + ("-again" if self.restarts else "")


RANK_FAULTS = (
    RankFault(
        "raises",
        "exception",
        Outcome(
            *("workload_failed", "exception", "ValueError", "rank 1 has a bug"),
            "rank # has a bug (rank_faults.py in play_alone)",
        ),
    ),
    RankFault(
        "raises_its_own_timeout",
        '`TimeoutError("Timed out waiting for shard server")` of its own',
        Outcome(
            *("workload_failed", "exception", "TimeoutError", "rank 1: Timed out waiting for shard server"),
            "TimeoutError: Timed out waiting for shard server (rank_faults.py in play_alone)",
        ),
    ),
    RankFault(
        "segfaults",
        "segmentation fault",
        Outcome(
            *("workload_failed", "signal", "SIGSEGV", "ended by SIGSEGV"),
            "SIGSEGV in string_at (rank_faults.py in play_alone)",
        ),
    ),
    RankFault(
        "killed_by_another",
        "SIGKILL from outside, as from a kernel short of memory",
        Outcome("workload_failed", "signal", "SIGKILL", "ended by SIGKILL", "SIGKILL in run() of a rank"),
    ),
    RankFault(
        "terminated_by_another",
        "SIGTERM from outside",
        Outcome("workload_failed", "signal", "SIGTERM", ", which its agent had not sent", "SIGTERM in run() of a rank"),
    ),
    RankFault(
        "exits_3",
        "`os._exit(3)`",
        Outcome(
            *("workload_failed", "exit_code", 3, "ended itself with exit code 3"), "exit code 3 in run() of a rank"
        ),
    ),
    RankFault(
        "leaves",
        "`os._exit(0)` in the middle",
        Outcome(
            *("workload_failed", "exit_code", 0, "ended itself with exit code 0"), "exit code 0 in run() of a rank"
        ),
    ),
    RankFault(
        "leaves_before_init",
        "`os._exit(0)` before `init_process_group()`",
        Outcome(
            *("infrastructure_failed", "exit_code", 0, "ended itself with exit code 0 in setup()"),
            "exit code 0 in setup() of a rank",
            phase="setup",
        ),
        {
            **dict.fromkeys(
                SCRIPTS,
                Outcome(
                    *("workload_failed", "exit_code", 0, "ended itself with exit code 0 in run()"),
                    "exit code 0 in run() of a rank",
                    why="a script has no phases",
                ),
            ),
            "spawn": Outcome(
                *("workload_failed", "exception", "DistStoreError", "wait timeout"),
                "DistStoreError: wait timeout",
                rank=None,
                why="a process of the script has no rank before `init_process_group()`",
            ),
        },
    ),
    RankFault(
        "raises_late",
        "exception when the other ranks are done",
        Outcome(
            *("workload_failed", "exception", "ValueError", "rank 1 has a late bug"),
            "rank # has a late bug (rank_faults.py in run)",
        ),
    ),
    RankFault(
        "gives_up",
        "the process group's own timeout passes, before the deadline",
        Outcome(
            *("workload_failed", "exception", "RuntimeError", "rank 1 is missing: play_alone() at rank_faults.py"),
            "rank # is missing: play_alone() at rank_faults.py",
        ),
        {
            "external": Outcome(
                *("timeout", "timeout", None, "play_alone() at rank_faults.py", "timeout (rank_faults.py in play"),
                why="each rank has a deadline of its own",
            ),
        },
    ),
    RankFault(
        "sleeps",
        "a hang before a collective",
        Outcome(
            *("timeout", "timeout", None, "rank 1 is missing: play_alone() at rank_faults.py"),
            "timeout (rank_faults.py in play_alone)",
        ),
        {
            "external": Outcome(
                *("timeout", "timeout", None, "play_alone() at rank_faults.py", "timeout (rank_faults.py in play"),
                why="each rank has a deadline of its own, so the others may end before theirs",
            ),
        },
        hangs=True,
    ),
    RankFault(
        "blocked_with_the_gil",
        "a hang in C, with the GIL held",
        Outcome(
            *("timeout", "timeout", None, "play_alone() at rank_faults.py"), "timeout (rank_faults.py in play_alone)"
        ),
        hangs=True,
    ),
    RankFault("raises_once", "exception, and a restart that passes", Outcome("ok"), restarts=1),
    RankFault(
        "raises",
        "exception, and again after a restart",
        Outcome(
            *("workload_failed", "exception", "ValueError", "rank 1 has a bug"),
            "rank # has a bug (rank_faults.py in play_alone)",
        ),
        restarts=1,
    ),
)


def as_markdown() -> str:
    """The table for readers."""
    lines = ["| rank 1 | is recorded as | where not |", "|---|---|---|"]
    for fault in RANK_FAULTS:
        others: dict[str, list[str]] = {}
        for launcher, other in fault.elsewhere.items():
            others.setdefault(f"{other.words} ({other.why})", []).append(LAUNCHERS[launcher])
        cells = [
            fault.means,
            fault.outcome.words,
            "; ".join(f"{', '.join(who)}: {what}" for what, who in others.items()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
