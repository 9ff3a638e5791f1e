"""How each rank of a trial ended, from its event log and from what its agent saw."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_aorta.launch.child.event_log import pid_of, read_story
from pytest_aorta.launch.child.rank_files import attempt_folder, find_file, find_log, read_error_file
from pytest_aorta.trials.events import FailureData, RankData
from pytest_aorta.trials.outcome import Observed, signal_name, timeout_failure

#: An agent sends SIGTERM first. A SIGKILL within so many seconds of the first failure is somebody else's, who may be
#: short of memory.
_AT_ONCE = 2


def rank_records(
    folder: Callable[[int], Path],
    nproc: int,
    endings: Mapping[int, Mapping[str, Any]],
    logs: Callable[[int, str], str | None],
    overdue: Mapping[int, float] = MappingProxyType({}),
    stalled: float | None = None,
    errors: Callable[[int], Path | None] = lambda rank: None,
    local: Mapping[int, int] | None = None,
) -> list[RankData]:
    """One plain ``RankRecord`` per rank.

    Args:
        folder: where a rank's story is.
        nproc: number of ranks.
        endings: of the ranks whose end was seen: ``pid``, ``exitcode`` (negative for a signal), ``at`` (seconds of
            ``time.time()``). torch's agents see the first that fail, and may end the others unseen.
        logs: path of a rank's ``stdout``, ``stderr`` or ``stacks``, relative to the trial file's folder; ``None`` where
            there is none.
        overdue: ranks that were ended because of the deadline unless they had finished, and when it passed (seconds of
            ``time.time()``).
        stalled: the seconds without progress that were too many, where it was not the deadline.
        errors: a rank's error file.
        local: global to local ranks, where these are not all ranks, or not the same numbers.
    """
    local = {rank: rank for rank in range(nproc)} if local is None else local
    failed_at = [ending.get("at", 0) for ending in endings.values() if int(ending["exitcode"]) != 0]
    some_failed = bool(failed_at)
    records: list[RankData] = []
    for rank in sorted(local):
        seen = read_story(folder(rank), rank)
        ending = endings.get(rank)
        code = None if ending is None else int(ending["exitcode"])
        failure = seen.failures.get("setup") or seen.failures.get("run") or seen.failures.get("cleanup")
        collateral = False
        late = rank in overdue and not (seen.finished and seen.finished_at <= overdue[rank])
        if late and (failure is None or failure.get("at", 0) > overdue[rank]):
            # What it tells after the deadline is not what it would have told.
            seen.phase = seen.phase if failure is None else failure["phase"]
            seen.stalled = stalled
            failure = timeout_failure(seen)
        elif failure is None and code is None and not seen.finished and some_failed:
            message = f"ended in {seen.phase}(), before it was done, because another rank had failed"
            failure, collateral = {"phase": seen.phase, "kind": "signal", "message": message}, True
        elif failure is None and (code or not seen.finished):
            failure = _how_it_ended(seen, code or 0)
            late = ending is not None and ending.get("at", 0) - min(failed_at, default=0) > _AT_ONCE
            told_to = ending is not None and ending.get("told_to", False)
            collateral = code == -signal.SIGTERM or (code == -signal.SIGKILL and (late or told_to))
        elif failure is None and seen.result is not None and not seen.result["passed"] and rank != 0:
            # Rank 0's own verdict is the trial's result already.
            failure = {"phase": "run", "kind": "result", "message": "run() returned passed=False"}
        if code is None and not some_failed and (failure is None or failure["kind"] not in ("timeout", "stall")):
            code = 0
        records.append(
            {
                "rank": rank,
                "local_rank": local[rank],
                "host": socket.gethostname(),
                "pid": pid_of(seen) if ending is None else ending.get("pid"),
                "exit_code": code if code is not None and code >= 0 else None,
                "signal": signal_name(-code) if code is not None and code < 0 else None,
                "passed": None if seen.result is None else seen.result["passed"],
                "failure": None if failure is None else {**failure, "rank": rank},
                "collateral": collateral,
                "error_file": read_error_file(errors(rank)),
                "result": seen.result,
                "stdout": logs(rank, "stdout"),
                "stderr": logs(rank, "stderr"),
                "stacks": logs(rank, "stacks"),
            }
        )
    return records


def records_of_attempt(
    folder: Path,
    attempt: int,
    nproc: int,
    endings: Mapping[int, Mapping[str, Any]],
    *,
    overdue: Mapping[int, float] = MappingProxyType({}),
    stalled: float | None = None,
    local: Mapping[int, int] | None = None,
) -> list[RankData]:
    """``rank_records`` of ranks that an agent has started, of an attempt below a trial's artifacts ``folder``."""
    return rank_records(
        lambda _: attempt_folder(folder, attempt),
        nproc,
        endings,
        lambda rank, name: find_log(folder, attempt, rank, name),
        overdue,
        stalled,
        errors=lambda rank: find_file(folder, attempt, rank, "error.json"),
        local=local,
    )


def _how_it_ended(seen: Observed, code: int) -> FailureData:
    if code < 0:
        name = signal_name(-code)
        return {"phase": seen.phase, "kind": "signal", "signal": name, "message": f"ended by {name} in {seen.phase}()"}
    message = f"ended itself with exit code {code} in {seen.phase}(), before it was done"
    return {"phase": seen.phase, "kind": "exit_code", "exit_code": code, "message": message}


def mark_outlived(records: list[RankData], message: str) -> None:
    """Nobody has seen how ranks ended that had not when their agent did."""
    for record in records:
        failure = record["failure"]
        if failure is not None and failure["kind"] == "exit_code":
            failure |= {"kind": "signal", "exit_code": None, "message": message}
            record |= {"exit_code": None, "collateral": True}
