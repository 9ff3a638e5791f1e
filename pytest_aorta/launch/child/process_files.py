"""What the armed Python processes of a command have told, as the files of ranks that every launcher leaves."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_aorta.launch.child.attempt_files import (
    EventLogWriter,
    attempt_folder,
    collectives_file,
    event_log,
    read_error_file,
    request_trace,
    write_exit,
    write_start,
    write_stop,
)
from pytest_aorta.launch.diagnosis.evidence import RankEvidence, RankExit, TrialEvidence
from pytest_aorta.launch.diagnosis.traces import infer_exit_reason
from pytest_aorta.trials.records import Event, Failure, ResultRecord, to_json

#: Where they write, in the folder of the trial.
PROCESSES = "processes"


@dataclass
class Process:
    """One Python process. ``place`` is that of a rank; ``end`` as the process that has waited for it saw it."""

    name: str
    pid: int
    parent: int
    host: str
    started: float
    place: dict[str, Any] | None = None
    raised: dict[str, Any] | None = None
    lived: float | None = None
    end: RankExit | None = None
    #: When it began to end its children.
    stops: float | None = None

    @property
    def failure(self) -> Failure | None:
        """Why it has ended, where it has failed."""
        return self.failure_in(None, None)

    def failure_in(self, error_file: Path | None, stderr: Path | None) -> Failure | None:
        """Likewise, with what it has left in these files where it has not told what it raised."""
        error, code = self.raised, None if self.end is None else self.end.exitcode
        if code == 0 or (error is None and code is None):  # what was raised has not ended it
            return None
        if error is None:
            failure = infer_exit_reason(code or 1, read_error_file(error_file), stderr)
            return replace(failure, at=None if self.end is None else self.end.at)
        failure = Failure("run", "exception", error["message"], error["type"], error["traceback"], at=error["raised"])
        reason = infer_exit_reason(code or 1, None, None)
        return replace(failure, exit_code=reason.exit_code, signal=reason.signal)


def read_processes(folder: Path) -> list[Process]:
    """In the order of their starts. Of several programs that have followed each other in a process, the last."""
    found: dict[tuple[str, int], Process] = {}
    ends: dict[tuple[str, int], RankExit] = {}
    asked: set[tuple[str, int]] = set()
    for path in sorted((folder / PROCESSES).glob("*.*.events")):
        name = path.name.removesuffix(".events")
        for entry in _entries(path):
            if "start" in entry:
                own = Process(name, entry["pid"], entry["parent"], entry["host"], entry["start"])
                found[own.host, own.pid] = own
            elif "rank" in entry:
                own.place = entry
            elif "raised" in entry:
                own.raised = entry
            elif "lived" in entry:
                own.lived = entry["lived"]
            elif "stops" in entry:
                own.stops = entry["stops"]
            elif "asks" in entry:
                asked.add((own.host, entry["asks"]))
            elif "of" in entry:
                ends[own.host, entry["of"]] = RankExit(entry["code"], entry["of"], entry["at"])
    for key, end in ends.items():
        if (process := found.get(key)) is not None:
            process.end = replace(end, sec=max(0.0, (end.at or 0.0) - process.started), stopped=key in asked)
    return sorted(found.values(), key=lambda process: process.started)


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, SyntaxError):  # torn
                yield ast.literal_eval(line)


def save_process_collectives(folder: Path, sockets: Path) -> None:
    """Ask the flight recorders of running ranks, which serve them at sockets that have the numbers of processes."""
    with contextlib.suppress(OSError):
        for path in sockets.iterdir():
            recorded = request_trace(path) if path.name.isdigit() else None
            if recorded is not None and recorded.get("entries"):
                name = f"{os.uname().nodename}.{path.name}.collectives.json"
                (folder / PROCESSES / name).write_text(to_json(recorded))


def adopt_ranks(folder: Path, processes: list[Process], said: str, code: int = 0) -> list[int]:
    """Write what is known of ranks into the files of their attempts; the attempts, in order.

    ``said``: what the command has printed, and ``code`` that it has exited with, for launchers that are no Python
    program.
    """
    ranks = [process for process in processes if process.place is not None]
    _complete(ranks, said, code)
    attempts: dict[int, dict[int, Process]] = {}
    for process in ranks:
        assert process.place is not None
        # The first: what else has its variables was started by it, or by a launcher that is no Python program.
        attempts.setdefault(process.place["attempt"], {}).setdefault(process.place["rank"], process)
    stops = [process.stops for process in processes if process.stops is not None]
    for attempt, members in attempts.items():
        _write(folder, attempt, members, stops)
    return sorted(attempts)


def _write(folder: Path, attempt: int, members: dict[int, Process], stops: list[float]) -> None:
    own = attempt_folder(folder, attempt)
    own.mkdir(parents=True, exist_ok=True)
    places = {rank: process.place or {} for rank, process in members.items()}
    size = max([max(members) + 1, *(place["world"] or 0 for place in places.values())])
    group = next((place["group"] for place in places.values() if place["group"]), "")
    local = {(place["local"] if place["local"] is not None else rank): rank for rank, place in places.items()}
    if len(local) < len(members):  # of several hosts
        local = dict(zip(members, members, strict=True))
    write_start(own, local, size, group)
    begun = min(process.started for process in members.values())
    if after := [at for at in stops if at >= begun]:
        write_stop(own, min(after))
    for rank, process in members.items():
        with contextlib.suppress(OSError), contextlib.closing(EventLogWriter(event_log(own, rank))) as log:
            for event in begin_events(process.pid) + end_events(process):
                log.send(event)
        if process.end is not None:
            write_exit(own, rank, process.end)
        _move_files(folder, process)


def _move_files(folder: Path, process: Process) -> None:
    assert process.place is not None
    own, rank = attempt_folder(folder, process.place["attempt"]), process.place["rank"]
    stacks, collectives = own / f"rank_{rank}.stacks.log", collectives_file(own, rank)
    for name, target in (("stacks.log", stacks), ("collectives.json", collectives)):
        with contextlib.suppress(OSError):
            left = folder / PROCESSES / f"{process.name}.{name}"
            if left.stat().st_size > 0:  # else a fork has opened it before it became a rank
                left.rename(target)


def move_files(folder: Path) -> None:
    """Where an agent has written down how the ranks ended, add what else their processes have left."""
    for process in read_processes(folder):
        if process.place is not None:
            _move_files(folder, process)


def settle(trial: TrialEvidence) -> TrialEvidence:
    """Take ranks of a script for done that have called ``os._exit(0)``, unless the others waited for them."""
    if trial.launcher != "script":
        return trial
    silent = [rank for rank in trial.ranks if rank.exit is not None and rank.exit.exitcode == 0 and _says_nothing(rank)]
    others = [rank for rank in trial.ranks if rank not in silent and not rank.seen().finished]
    if not others or not all(map(_waits, others)):
        for rank in silent:
            assert rank.exit is not None
            done: Event = {"type": "end", "phase": "run", "sec": rank.exit.sec, "at": rank.exit.at}
            rank.events = [*(rank.events or ()), {**done, "result": ResultRecord(True)}, {"type": "lived", "at": None}]
    return trial


def _says_nothing(rank: RankEvidence) -> bool:
    seen = rank.seen()
    return not seen.finished and not seen.failures


def _waits(rank: RankEvidence) -> bool:
    in_group = ["/torch/distributed/" in (failure.traceback or "") for failure in rank.seen().failures.values()]
    in_collective = rank.location is not None and rank.location.collective is not None
    return any(in_group) or in_collective or bool(rank.exit is not None and rank.exit.stopped)


def begin_events(pid: int) -> list[Event]:
    """What the event log of a rank begins with that writes none itself."""
    return [{"type": "env", "env": {"process": {"pid": pid}}}, {"type": "begin", "phase": "run"}]


def end_events(process: Process, error_file: Path | None = None, stderr: Path | None = None) -> list[Event]:
    """Of a rank that writes no events; the files are read where it has not told what it raised."""
    end, failure = process.end, process.failure_in(error_file, stderr)
    at = process.lived if end is None else end.at
    done: Event = {"type": "end", "phase": "run", "sec": (at or process.started) - process.started, "at": at}
    if failure is not None and (process.raised is not None or (end is not None and not end.stopped)):
        if end is not None and end.exitcode == -signal.SIGTERM and end.stopped is False:
            failure = replace(failure, message=f"{failure.message}, which its agent had not sent")
        return [{**done, "failure": failure}]
    if failure is None and (process.lived is not None or process.raised is not None):
        return [{**done, "result": ResultRecord(True)}, {"type": "lived", "at": at}]
    return []


#: What a Python program raises because of one that it has started.
_OF_A_CHILD = {"CalledProcessError", "ChildFailedError", "ProcessRaisedException", "ProcessExitedException"}


def failure_below(processes: list[Process], own: Failure) -> Failure | None:
    """Why the first of them has failed, where it knows that better than its output, which says ``own``.

    It may have failed because of a program that it had started.
    """
    cause = next((process for process in processes if process.raised is not None), None)
    first = cause = next((each for each in processes if cause is not None and each.pid == cause.parent), cause)
    while cause is not None and cause.raised is not None and cause.raised["type"] in _OF_A_CHILD:
        below = [each for each in processes if each.parent == cause.pid and each.failure is not None]
        if not below:
            break
        cause = min(below, key=lambda each: (each.end is not None and bool(each.end.stopped), each.started))
    failure = None if cause is None else cause.failure
    if failure is None or cause is not first:
        return failure
    # What is printed of an exception does not show where its message ends.
    is_same = own.kind == "exception" and own.type == (failure.type or "").rpartition(".")[2]
    return replace(failure, exit_code=own.exit_code, signal=own.signal) if is_same else None


#: Of what torchrun prints last: the rank that it has seen fail first.
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):\s+\[\d+\]:\s+time +: .*\s+host +: .*\s+rank +: (?P<rank>\d+) .*"
    r"\s+exitcode +: (?P<code>-?\d+) .*\s+error_file *: (?P<file>.*)"
)


def root_cause(said: str) -> Failure | None:
    """What torchrun has printed of the rank that has failed first, with what that has written to its error file."""
    found = next(reversed(list(_ROOT_CAUSE.finditer(said))), None)
    if found is None:
        return None
    file = found["file"].strip()
    failure = infer_exit_reason(int(found["code"]), read_error_file(Path(file)) if file.startswith("/") else None, None)
    rank = int(found["rank"])
    return replace(failure, rank=rank, message=f"rank {rank}: {failure.message}")


#: What launchers that are no Python programs print of a rank that has ended: its rank and how.
_SAID = (
    re.compile(r"(?:mpi|prte)(?:run|exec) noticed that process rank (?P<rank>\d+) .*on signal (?P<signal>\d+)"),
    re.compile(r"Process name: \[\S+,(?P<rank>\d+)\]\s*\n\s*Exit code: +(?P<code>\d+)"),
    re.compile(r"^srun: error: .*: tasks? (?P<rank>\d+): Exited with exit code (?P<code>\d+)", re.MULTILINE),
    re.compile(r"^srun: error: .*: tasks? (?P<rank>\d+): (?P<name>[A-Z][\w ]+?)(?: \(core dumped\))?$", re.MULTILINE),
)


#: Of MPICH, which does not say which rank it was.
_ENDED_BY = re.compile(r"TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)")


def _complete(ranks: list[Process], said: str, code: int) -> None:
    """Add ends that no Python process has seen, as launchers print them; of a single silent rank, the command's."""
    words = {int(number): signal.strsignal(number) or "" for number in signal.valid_signals()}
    names = {word.lower(): number for number, word in words.items()}
    told: dict[int, int] = {}
    for pattern in _SAID:
        for found in pattern.finditer(said):
            groups = found.groupdict("")
            number = groups.get("signal") or names.get(groups.get("name", "").lower(), 0)
            if end := int(groups.get("code") or -int(number)):
                told.setdefault(int(groups["rank"]), end)
    for process in ranks:
        if process.end is None and process.place is not None:
            raised = None if process.raised is None else process.raised["raised"]
            own = None if raised is None and process.lived is None else int(bool(raised))
            code_of_rank = told.get(process.place["rank"], own)
            if code_of_rank is not None:
                process.end = _seen_end(process, code_of_rank, raised or process.lived)
    silent = [process for process in ranks if process.end is None]
    if len(silent) == 1 and len(ranks) > 1 and code > 0:
        by = next((int(found[1]) for found in _ENDED_BY.finditer(said)), code - 128 if 128 < code < 160 else 0)
        silent[0].end = _seen_end(silent[0], -by or code, None)


def _seen_end(process: Process, code: int, at: float | None) -> RankExit:
    return RankExit(code, process.pid, at, max(0.0, (at or process.started) - process.started))


def clear(folder: Path) -> None:
    """Remove what was read, and empty dumps of stacks."""
    with contextlib.suppress(OSError):
        for path in (folder / PROCESSES).iterdir():
            if path.suffix == ".events" or path.stat().st_size == 0:
                path.unlink()
        (folder / PROCESSES).rmdir()
