"""How each rank of a trial ended, from its event log and from the exit of its process."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from typing_extensions import Required, TypedDict

from pytest_aorta.launch.child.event_log import pid_of, read_event_log
from pytest_aorta.launch.child.rank_files import attempt_folder, find_file, find_log, read_error_file
from pytest_aorta.trials.events import FailureData, Phase, RankData
from pytest_aorta.trials.outcome import Observed, exit_failure, place, signal_name, timeout_failure

#: An agent sends SIGTERM first. A SIGKILL within so many seconds of the first failure comes from elsewhere: the kernel
#: may be short of memory.
_AT_ONCE = 2

_IN_ORDER: tuple[Phase, ...] = ("import", "setup", "run", "cleanup")

_NOT_PASSED: FailureData = {"phase": "run", "kind": "result", "message": "run() returned passed=False"}


class RankExit(TypedDict, total=False):
    """How the process of a rank ended, as its parent saw it."""

    #: Negative for a signal.
    exitcode: Required[int]
    pid: int | None
    #: Seconds of ``time.time()``.
    at: float
    #: Seconds since its start.
    sec: float
    #: Whether the agent had asked it to end.
    stopped: bool


@dataclass(frozen=True)
class RankFiles:
    """Where the files of a trial's ranks are.

    Attributes:
        event_folder: the folder of a rank's event log.
        log: path of a rank's ``stdout``, ``stderr`` or ``stacks``, relative to the trial file's folder; ``None`` where
            there is none.
        error_file: of a rank, as torch's ``record`` writes it.
    """

    event_folder: Callable[[int], Path]
    log: Callable[[int, str], str | None]
    error_file: Callable[[int], Path | None]

    @classmethod
    def of_attempt(cls, folder: Path, attempt: int) -> RankFiles:
        """Below a trial's artifacts ``folder``."""
        return cls(
            event_folder=lambda rank: attempt_folder(folder, attempt),
            log=lambda rank, stream: find_log(folder, attempt, rank, stream),
            error_file=lambda rank: find_file(folder, attempt, rank, "error.json"),
        )


def rank_records(
    files: RankFiles,
    ranks: Mapping[int, int],
    exits: Mapping[int, RankExit],
    overdue: Mapping[int, float] = MappingProxyType({}),
    stalled: float | None = None,
) -> list[RankData]:
    """One record per rank, in the order of the ranks.

    Args:
        files: where the ranks have written.
        ranks: global to local ranks.
        exits: of the ranks whose exit was seen. torch's agents see the first that fail, and may end the others unseen.
        overdue: ranks that were ended because of the deadline unless they had finished, and when it passed (seconds of
            ``time.time()``).
        stalled: the seconds without progress that were too many, where it was not the deadline.
    """
    first_failure = min((end.get("at", 0.0) for end in exits.values() if end["exitcode"] != 0), default=None)
    records: list[RankData] = []
    for rank, local_rank in sorted(ranks.items()):
        seen = read_event_log(files.event_folder(rank), rank)
        end = exits.get(rank)
        failure, collateral = _failure_of(rank, seen, end, first_failure, overdue.get(rank), stalled)
        code = None if end is None else end["exitcode"]
        if code is None and first_failure is None and (failure is None or failure["kind"] not in ("timeout", "stall")):
            code = 0
        records.append(
            {
                "rank": rank,
                "local_rank": local_rank,
                "host": socket.gethostname(),
                "pid": pid_of(seen) if end is None else end.get("pid"),
                "exit_code": code if code is not None and code >= 0 else None,
                "signal": signal_name(-code) if code is not None and code < 0 else None,
                "passed": None if seen.result is None else seen.result["passed"],
                "failure": None if failure is None else {**failure, "rank": rank},
                "collateral": collateral,
                "error_file": read_error_file(files.error_file(rank)),
                "result": seen.result,
                "stdout": files.log(rank, "stdout"),
                "stderr": files.log(rank, "stderr"),
                "stacks": files.log(rank, "stacks"),
                "seeds": seen.seeds,
            }
        )
    return records


def _failure_of(
    rank: int,
    seen: Observed,
    end: RankExit | None,
    first_failure: float | None,
    deadline: float | None,
    stalled: float | None,
) -> tuple[FailureData | None, bool]:
    """The failure of one rank, and whether it follows from that of another one."""
    reported = next((seen.failures[phase] for phase in _IN_ORDER if phase in seen.failures), None)
    finished = seen.finished and (deadline is None or seen.finished_at <= deadline)
    if deadline is not None and not finished and (reported is None or reported.get("at", 0.0) > deadline):
        # What it reported after the deadline is an effect of the signals that ended it.
        seen.phase = seen.phase if reported is None else reported["phase"]
        seen.stalled = stalled
        return timeout_failure(seen), False
    if reported is not None:
        return reported, False
    if end is None and not seen.finished and first_failure is not None:
        message = f"ended in {place(seen.phase)}, before it was done, because another rank had failed"
        return {"phase": seen.phase, "kind": "signal", "message": message}, True
    code = 0 if end is None else end["exitcode"]
    if code or not seen.finished:
        late = end is not None and first_failure is not None and end.get("at", 0.0) - first_failure > _AT_ONCE
        stopped = end is not None and end.get("stopped", False)
        collateral = code == -signal.SIGTERM or (code == -signal.SIGKILL and (late or stopped))
        return _exit_failure(seen, code), collateral
    if rank != 0 and seen.result is not None and not seen.result["passed"]:  # rank 0's result is the trial's
        return _NOT_PASSED, False
    return None, False


def _exit_failure(seen: Observed, code: int) -> FailureData:
    message = f"ended itself with exit code {code} in {place(seen.phase)}, before it was done"
    if code < 0:
        message = f"ended by {signal_name(-code)} in {place(seen.phase)}"
    return exit_failure(seen.phase, code, {"message": message})


def records_of_attempt(
    folder: Path,
    attempt: int,
    nproc: int,
    exits: Mapping[int, RankExit],
    *,
    overdue: Mapping[int, float] = MappingProxyType({}),
    stalled: float | None = None,
    local: Mapping[int, int] | None = None,
) -> list[RankData]:
    """``rank_records`` of an attempt below a trial's artifacts ``folder``; ``local`` as its ``ranks``, or all."""
    ranks = {rank: rank for rank in range(nproc)} if local is None else local
    return rank_records(RankFiles.of_attempt(folder, attempt), ranks, exits, overdue, stalled)


def mark_outlived(records: list[RankData], message: str) -> None:
    """Correct the records of ranks that still ran when their agent ended: their exits are unknown."""
    for record in records:
        failure = record["failure"]
        if failure is not None and failure["kind"] == "exit_code":
            failure |= {"kind": "signal", "exit_code": None, "message": message}
            record |= {"exit_code": None, "collateral": True}
