"""The ranks of a distributed trial: what each tells of itself, and what their endings say together."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_aorta.trials.lifecycle import Event
from pytest_aorta.trials.outcome import Observed, signal_name, timeout_failure

#: An agent sends SIGTERM first. A SIGKILL within so many seconds of the first failure is somebody else's, who may be
#: short of memory.
_AT_ONCE = 2

#: Aborts follow from other faults (a collective's watchdog, an uncaught C++ exception) more often than they cause them.
_FOLLOWERS = {signal.SIGABRT}

#: Bytes that are read of an error file.
_ERROR_FILE = 2**20

#: How backends tell that the rank at the other end has gone.
_PEER_LOST = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Read error|Socket closed|remote process exited", re.I
)


#: Tells a rank which attempt it belongs to.
ATTEMPT = "AORTA_ATTEMPT"


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Where the ranks of an attempt write, below a trial's artifacts ``folder``."""
    return folder / f"attempt_{attempt}"


def last_attempt(folder: Path) -> int:
    """The last attempt that has left something; 0 when none has."""
    numbers = [path.name.partition("_")[2] for path in folder.glob("attempt_*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def story(folder: Path, rank: int) -> Path:
    """The file in which a rank tells its events, one JSON line each."""
    return folder / f"rank_{rank}.events"


def teller(folder: Path, rank: int, relay: Callable[[Event], None] | None = None) -> Callable[[Event], None]:
    """A ``send`` for a rank: into its story, and through ``relay`` where it has one."""
    fd = os.open(story(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def send(event: Event) -> None:
        os.write(fd, json.dumps(event).encode() + b"\n")
        if relay is not None:
            relay(event)

    return send


class Relay:
    """Sends what a rank has told, attempt after attempt, from its stories."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send = send
        #: Bytes that were sent of each story.
        self._told: dict[Path, int] = {}

    def look(self, path: Path) -> None:
        """Send the complete lines of a story that were not sent yet."""
        told = self._told.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(told)
                data = file.read()
        except OSError:
            return
        complete = data[: data.rfind(b"\n") + 1]
        for line in complete.splitlines():
            self._send(json.loads(line))
        self._told[path] = told + len(complete)


def read_story(folder: Path, rank: int) -> Observed:
    """What a rank told before it ended."""
    seen = Observed()
    try:
        text = story(folder, rank).read_text(errors="replace")
    except OSError:
        return seen
    for line in text.splitlines():
        try:
            seen.see(json.loads(line))
        except ValueError:
            continue  # empty, or torn: the rank died while it wrote
    return seen


def pids_of_ranks(folder: Path) -> dict[int, int]:
    """Processes of the ranks that have begun to tell their stories in an attempt's ``folder``."""
    found = {}
    for path in folder.glob("rank_*.events"):
        rank = path.stem.partition("_")[2]
        if rank.isdecimal() and (pid := _pid(read_story(folder, int(rank)))) is not None:
            found[int(rank)] = pid
    return dict(sorted(found.items()))


def rank_records(
    folder: Callable[[int], Path],
    nproc: int,
    endings: Mapping[int, Mapping[str, Any]],
    logs: Callable[[int, str], str | None],
    overdue: Mapping[int, float] = MappingProxyType({}),
    stalled: float | None = None,
    errors: Callable[[int], Path | None] = lambda rank: None,
    local: Mapping[int, int] | None = None,
) -> list[dict[str, Any]]:
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
    records = []
    for rank in sorted(local):
        seen = read_story(folder(rank), rank)
        ending = endings.get(rank)
        code = None if ending is None else int(ending["exitcode"])
        failure = next((seen.failures[phase] for phase in ("setup", "run", "cleanup") if phase in seen.failures), None)
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
                "pid": _pid(seen) if ending is None else ending.get("pid"),
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


def _pid(seen: Observed) -> int | None:
    """As the rank's own snapshot of its environment has it."""
    pid = ((seen.env or {}).get("process") or {}).get("pid")
    return pid if isinstance(pid, int) else None


def _how_it_ended(seen: Observed, code: int) -> dict[str, Any]:
    if code < 0:
        name = signal_name(-code)
        return {"phase": seen.phase, "kind": "signal", "signal": name, "message": f"ended by {name} in {seen.phase}()"}
    message = f"ended itself with exit code {code} in {seen.phase}(), before it was done"
    return {"phase": seen.phase, "kind": "exit_code", "exit_code": code, "message": message}


def find_file(folder: Path, attempt: int, rank: int, name: str) -> Path | None:
    """What a rank of an attempt wrote below a trial's artifacts ``folder``: ``stdout.log``, ``error.json``, ..."""
    own = folder / f"attempt_{attempt}" / f"rank_{rank}.{name}"
    of_torchrun = folder.glob(f"torchrun/*/attempt_{attempt}/{rank}/{name}")
    return next((path for path in (own, *of_torchrun) if path.exists()), None)


def find_log(folder: Path, attempt: int, rank: int, stream: str) -> str | None:
    """A rank's log, relative to the folder of the trial file."""
    found = find_file(folder, attempt, rank, f"{stream}.log")
    if found is None or (stream == "stacks" and found.stat().st_size == 0):  # an empty one is cleared away
        return None
    return found.relative_to(folder.parent).as_posix()


def read_error_file(path: Path | None) -> dict[str, Any] | None:
    """What torch's ``record``, or a workload itself, has written to a rank's error file; ``None`` without one."""
    if path is None:
        return None
    try:
        content = json.loads(path.read_bytes()[:_ERROR_FILE])
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else {"message": content}


def ranks_event(records: list[dict[str, Any]]) -> Event:
    """What the records of all ranks say together, as an event of their trial."""
    return {"type": "ranks", "ranks": records, "failure": root_cause(records), "cleanup": cleanup_failure(records)}


def combined_result(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The result of a trial whose ranks speak for themselves; ``None`` unless all of them have returned one.

    Failures are counted together, and their details listed in the order of the ranks, each with its ``rank``; all else
    is rank 0's.
    """
    results = [record["result"] for record in records]
    if not results or None in results:
        return None
    firsts = [result.get("first_failure_iteration") for result in results]
    return {
        **results[0],
        "passed": all(result["passed"] for result in results),
        "failure_count": sum(result.get("failure_count", 0) for result in results),
        "first_failure_iteration": min((first for first in firsts if first is not None), default=None),
        "failure_details": [
            {"rank": record["rank"], **detail}
            for record in records
            for detail in record["result"].get("failure_details", [])
        ],
    }


def cleanup_failure(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What went wrong in the cleanup of the first rank that has not only been ended because of another one."""
    for record in records:
        failure = record["failure"]
        if failure is not None and failure["phase"] == "cleanup" and not record["collateral"]:
            return {**failure, "message": f"rank {failure['rank']}: {failure['message']}"}
    return None


def root_cause(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The failure that the others follow from, or ``None``.

    A fatal signal, a hang, or an end of its own accord before the result, beats an exception, because the peers of a
    rank that is gone fail with exceptions; an exception beats an abort, an abort a result that is not passed, and that
    an exception that tells of a lost connection; a rank that was ended because of another one counts only when there
    is nothing else. Among equals the earliest, then the lowest rank.
    A failure in ``cleanup()`` is no cause, and neither are the ends of other ranks that it leads to.
    """

    def order(record: dict[str, Any]) -> tuple[int, float, int]:
        failure = record["failure"]
        if record["collateral"]:
            weight = 5 if record["signal"] is not None else 6
        elif failure["kind"] == "signal":
            weight = 2 if failure["signal"] in {number.name for number in _FOLLOWERS} else 0
        elif failure["kind"] == "exception" and _PEER_LOST.search(failure["message"]):
            weight = 4
        else:
            weight = {"exit_code": 0, "timeout": 0, "exception": 1}.get(failure["kind"], 3)
        return weight, failure.get("at", 0.0), record["rank"]

    failed = sorted((record for record in records if record["failure"] is not None), key=order)
    causes = [record for record in failed if record["failure"]["phase"] != "cleanup"]
    if not causes or (causes[0]["collateral"] and not failed[0]["collateral"]):
        return None
    failure = dict(causes[0]["failure"])
    failure["message"] = f"rank {failure['rank']}: {failure['message']}"
    return failure
