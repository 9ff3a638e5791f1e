"""The result of a script under torchrun."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.plugin.failure_text import printable, tail_of
from pytest_aorta.trials.result import RankRecord, TrialResult

if TYPE_CHECKING:
    from pytest_aorta.trials.result import ExitStatus, Failure


@dataclass(frozen=True, repr=False)
class TorchrunResult:
    """What became of a script under torchrun.

    Attributes:
        trial: the complete record, as in the trial file.
        ranks: of the last attempt, by rank; of a rank that was never started, only the number is known.
        folder: holds the logs.
        returncode: torchrun's own; ``None`` when it was ended, because of the deadline for instance.
    """

    trial: TrialResult
    ranks: tuple[RankRecord, ...]
    folder: Path
    returncode: int | None

    @classmethod
    def of(cls, trial: TrialResult, nproc: int, folder: Path) -> TorchrunResult:
        """From the record of a trial and its artifacts ``folder``."""
        known = {record.rank: record for record in trial.ranks}
        ranks = tuple(known.get(rank, RankRecord(rank=rank)) for rank in range(nproc))
        code = trial.result.metrics.get("returncode")
        if code is None and trial.failure is not None and trial.failure.rank is None:
            code = trial.failure.exit_code
        return cls(trial, ranks, folder, code)

    @property
    def ok(self) -> bool:
        """Whether torchrun has ended with exit code 0, in time."""
        return self.exit_status == "ok"

    @property
    def exit_status(self) -> ExitStatus:
        """``ok``, ``workload_failed`` (by the script), ``infrastructure_failed`` (not started), or ``timeout``."""
        return self.trial.exit_status

    @property
    def failure(self) -> Failure | None:
        """What went wrong first, with its ``rank``; ``None`` when nothing did."""
        return self.trial.failure

    @property
    def restarts(self) -> int:
        """How often torchrun has started all ranks again."""
        return self.trial.restarts

    @property
    def elapsed_sec(self) -> float | None:
        """Seconds from the start of torchrun to the end of the last process; ``None`` where it was not started."""
        return self.trial.wall_clock_sec

    @property
    def message(self) -> str:
        """The outcome in one line, then the traceback or the end of the log."""
        size = f"{len(self.ranks)} rank{'' if len(self.ranks) == 1 else 's'}"
        title = f"{self.trial.workload} on {size}: {self.exit_status}"
        failure = self.failure
        if failure is None:
            return title
        rank = "" if failure.rank is None else f"rank {failure.rank}: "
        said = failure.message.removeprefix(rank)
        kind = f"{failure.type}: " if failure.type and not said.startswith(f"{failure.type}: ") else ""
        lines = [f"{title}: {rank}{kind}{said}"]
        if failure.traceback:
            lines += failure.traceback.rstrip().splitlines()
        elif tail := tail_of(self._log(failure.rank, "stderr")):
            lines += ["--- end of stderr ---", *tail]
        return printable("\n".join([*lines, f"logs: {self.folder}"]))

    def stdout(self, rank: int = 0) -> str:
        """What a rank has printed, in the last attempt.

        Raises:
            IndexError: there is no such rank.
        """
        return self._read(rank, "stdout")

    def stderr(self, rank: int = 0) -> str:
        """What a rank has written to its standard error, in the last attempt.

        Raises:
            IndexError: there is no such rank.
        """
        return self._read(rank, "stderr")

    def _read(self, rank: int, stream: str) -> str:
        if not 0 <= rank < len(self.ranks):
            raise IndexError(f"there is no rank {rank}; the ranks are 0 to {len(self.ranks) - 1}")
        try:
            return self._log(rank, stream).read_text(errors="replace")
        except FileNotFoundError:  # it was never started
            return ""

    def _log(self, rank: int | None, stream: str) -> Path:
        """A rank's log, or torchrun's own."""
        found = None if rank is None else getattr(self.ranks[rank], stream)
        if found is not None:
            return self.folder.parent / str(found)
        return self.folder / (f"{stream}.log" if rank is None else f"rank_{rank}.{stream}.log")

    def __repr__(self) -> str:
        return f"<TorchrunResult {self.message.partition(chr(10))[0]}>"
