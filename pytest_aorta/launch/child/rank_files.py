"""The files of ranks: where they are, how they are written, and how evidence is read from them.

Ranks of a workload write events. The evidence of a rank of a script or command comes from its armed Python process
(``bootstrap.sitecustomize``) and from the lines of its launcher. All of it fills ``RankEvidence``, and the judge reads
nothing else.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pytest_aorta.common.texts import read_tail
from pytest_aorta.launch.child.bootstrap.ranks import ask_recorder
from pytest_aorta.launch.diagnosis.collectives import read_collectives
from pytest_aorta.launch.diagnosis.evidence import (
    AgentEnd,
    AttemptEvidence,
    Launcher,
    RankEvidence,
    RankExit,
    Wait,
)
from pytest_aorta.launch.diagnosis.traces import (
    complaint_in,
    imports_a_library,
    infer_exit_reason,
    last_line,
    last_words,
    locate,
    read_dump,
)
from pytest_aorta.trials.records import Event, Failure, ResultRecord, event_of_rank, to_json
from pytest_aorta.trials.steps import read_steps, step_file
from pytest_aorta.trials.tracebacks import own_message

#: Bytes that are read: of an error file, and of the end of a log, where a library may say why it ended its process.
_ERROR_FILE, _TAIL = 2**20, 2**16

#: Last lines of a log in which an exception is searched: for a rank that has failed, and for one that was ended.
_LAST_LINES, _LAST_LINES_OF_ENDED = 40, 3

#: Subfolder of a trial's folder in which armed processes write.
PROCESSES = "processes"


def attempt_folder(folder: Path, attempt: int) -> Path:
    """The folder in which the ranks of an attempt write, below a trial's artifacts ``folder``."""
    return folder / f"attempt_{attempt}"


def last_attempt(folder: Path) -> int:
    """Number of the last attempt that has left a folder; 0 without one."""
    numbers = [path.name.partition("_")[2] for path in folder.glob("attempt_*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def event_log(folder: Path, rank: int) -> Path:
    """The event log of a rank in an attempt's ``folder``; the process that waits for the rank adds its end."""
    return folder / f"rank_{rank}.events"


def collectives_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.collectives.json"


def evidence_file(folder: Path, attempt: int) -> Path:
    return attempt_folder(folder, attempt) / "evidence.json"


def _append(path: Path, *entries: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk must not disturb the ranks
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:  # the newline first: a process that died may have left a torn line
            for entry in entries:
                file.write(f"\n{to_json(entry)}\n".encode())


def log_event(folder: Path, rank: int, event: Event) -> None:
    """Add to the event log of a rank in an attempt's ``folder``."""
    _append(event_log(folder, rank), event)


def log_wait(folder: Path, rank: int, wait: Mapping[str, Any] | None) -> None:
    """Add what the call that raised was waiting for, as ``bootstrap.ranks.wait_in`` returns it."""
    if wait is not None:
        _append(event_log(folder, rank), {"type": "wait", "wait": wait})


def drop_collectives(folder: Path) -> None:
    """Remove the collectives of ranks of a passed trial from its ``folder``."""
    for path in folder.glob("attempt_*/rank_*.collectives.json"):
        path.unlink(missing_ok=True)


def _entries(data: bytes) -> list[Any]:
    entries = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):  # empty, or torn: its process died while it wrote
            entries.append(json.loads(line))
    return entries


def read_log(path: Path) -> list[Any] | None:
    """The complete entries of a log; ``None`` if there is no log."""
    try:
        return _entries(path.read_bytes())
    except OSError:
        return None


def read_new(path: Path, offset: int) -> tuple[list[Any], int]:
    """The complete entries of a growing log after byte ``offset``, and the offset after them."""
    data = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    complete = data[: data.rfind(b"\n") + 1]
    return _entries(complete), offset + len(complete)


# What the parent of the ranks writes down.


def write_start(folder: Path, ranks: Mapping[int, int], world_size: int, group: str) -> None:
    """Note the global numbers of the local ``ranks``, so that they are known even if the agent dies."""
    started = {"ranks": list(ranks.items()), "world_size": world_size, "group": group, "host": socket.gethostname()}
    _append(folder / "attempt.events", started)


def begin_log(folder: Path, rank: int, pid: int) -> None:
    """Begin the event log of a rank that writes none itself, in the ``folder`` of its attempt."""
    _append(event_log(folder, rank), {"type": "env", "env": {"process": {"pid": pid}}})
    log_event(folder, rank, {"type": "begin", "phase": "run"})


def write_stop(folder: Path, at: float) -> None:
    """Note when the running ranks of an attempt's ``folder`` were first asked to end."""
    _append(folder / "attempt.events", {"stopped_at": at})


def write_exit(folder: Path, rank: int, end: RankExit | None, overdue: float | None = None) -> None:
    """Append the end of a rank to its event log in ``folder``, which belongs to an attempt.

    ``end``: ``None`` if it is unknown. ``overdue``: time at which the rank's deadline passed, ``None`` if it did not.
    """
    _append(event_log(folder, rank), {"type": "over", "exit": end and asdict(end), "overdue": overdue})


def rank_folder(folder: Path, rank: int) -> Path:
    """Where a rank's own pytest writes, beside the trial's ``folder``, which is that of rank 0."""
    return folder.with_name(f"{folder.name}.rank_{rank}") if rank else folder


def has_ended(folder: Path, rank: int) -> bool:
    """Whether the end of a rank is the last entry of its event log."""
    lines = read_log(event_log(folder, rank))
    return bool(lines and lines[-1]["type"] == "over")


def save_collectives(folder: Path, sockets: Path, name: str = "*") -> None:
    """Save what the flight recorders of running ranks have into the trial's ``folder``.

    A rank of a workload serves its recorder at ``sockets / "attempt_<k>.<rank>"``, because paths below the results may
    be too long for a socket; an armed process serves it at a socket named after its process id. ``name``: of one
    socket.
    """
    for path in sockets.glob(name):
        place, _, rank = path.name.partition(".")
        if rank.isdecimal():
            target = collectives_file(folder / place, int(rank))
        elif place.isdecimal():
            target = folder / PROCESSES / f"{os.uname().nodename}.{place}.collectives.json"
        else:
            continue
        with contextlib.suppress(OSError, ValueError):
            answer = ask_recorder(str(path))
            if json.loads(answer).get("entries"):
                target.write_bytes(answer)


# The evidence.


def report_unstarted(folder: Path, rank: int, failure: Failure) -> None:
    """Write the event log, for which rank 0 waits, of a rank whose child could not be started."""
    now, timed_out = time.time(), failure.kind == "timeout"
    log_event(folder, rank, {"type": "begin", "phase": failure.phase})
    if not timed_out:
        end: Event = {"type": "end", "phase": failure.phase, "sec": 0.0, "failure": replace(failure, at=now)}
        log_event(folder, rank, end)
    if timed_out:
        write_exit(folder, rank, None, overdue=now)
    else:
        write_exit(folder, rank, RankExit(1, at=now, stopped=False))


def read_error_file(path: Path) -> dict[str, Any] | None:
    """Content of a rank's error file, which torch's ``record`` or a workload has written; ``None`` if there is none."""
    try:
        content = json.loads(path.read_bytes()[:_ERROR_FILE])
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else {"message": content}


def attempt_evidence(
    folder: Path,
    attempt: int,
    launcher: Launcher,
    source: str | None,
    *,
    agent: AgentEnd | None = None,
    overdue: float | None = None,
    stalled: float | None = None,
) -> AttemptEvidence:
    """Read the evidence of this node's ranks from the trial's ``folder``; of other nodes, only the rank numbers.

    ``source`` is the workload's file.
    """
    trial = AttemptEvidence(launcher, attempt, agent=agent, overdue=overdue, stalled=stalled)
    own, processes = attempt_folder(folder, attempt), {}
    if launcher == "script":
        told = read_processes(folder)
        move_files(folder, told)
        processes = {each.pid: each for each in told}
    for entry in read_log(own / "attempt.events") or ():
        if "stopped_at" in entry:
            trial.stopped_at = trial.stopped_at or entry["stopped_at"]
            continue
        trial.world_size, trial.group = entry["world_size"], entry["group"]
        trial.ranks = list(map(RankEvidence, range(entry["world_size"])))
        for local_rank, rank in entry["ranks"]:
            started = RankEvidence(rank, local_rank, entry["host"], started=True)
            process = _process_of(read_rank(started, own).exit, processes) if launcher == "script" else None
            trial.ranks[rank] = complete_rank(started, own, f"rank_{rank}.", folder.parent, source, process)
    return _settled(trial) if launcher == "script" else trial


def read_rank(rank: RankEvidence, folder: Path) -> RankEvidence:
    """Add the content of its event log, of the environment only the process, and of the steps only the last one."""
    lines = read_log(event_log(folder, rank.rank))
    if lines is None:
        return rank
    events: list[Event] = []
    for line in lines:
        if line["type"] == "env":
            events.append(event_of_rank({**line, "env": {"process": line["env"].get("process")}}))
            events[-1].pop("launcher_variables", None)
        elif line["type"] in ("begin", "end", "lived"):
            events.append(event_of_rank(line))
        elif line["type"] == "wait":
            rank = replace(rank, wait=Wait(**line["wait"]))
    if (last := read_steps(step_file(folder, rank.rank))) is not None:
        events.append(last)
    evidence = replace(rank, events=events)
    if lines and (end := lines[-1])["type"] == "over":  # an end further up is from an earlier pytest
        evidence.overdue = end["overdue"]
        evidence.exit = None if end["exit"] is None else RankExit(**end["exit"])
    return evidence


def complete_rank(
    rank: RankEvidence, folder: Path, prefix: str, base: Path, source: str | None, process: Process | None = None
) -> RankEvidence:
    """Add what the rank has left in ``folder``, where its logs and its error file have names with this ``prefix``.

    Paths of logs become relative to ``base``; ``source`` is the workload's file. What a ``process`` has told counts
    instead of an event log, which its rank does not write.
    """
    evidence = read_rank(rank, folder) if process is None else process.tell(rank, f"{folder}/{prefix}")
    for stream in ("stdout", "stderr", "stacks"):
        path = folder / f"{prefix}{stream}.log"
        if path.exists() and (stream != "stacks" or path.stat().st_size > 0):  # an empty one is cleared away
            setattr(evidence, stream, path.relative_to(base).as_posix())
    if evidence.stacks is not None:
        threads = read_dump(base / evidence.stacks)
        evidence.location, evidence.imports = locate(threads, source), imports_a_library(threads)
    if evidence.exit is not None and evidence.exit.exitcode == -signal.SIGABRT:
        log = folder.parent / "stderr.log" if evidence.stderr is None else base / evidence.stderr
        evidence.complaint = complaint_in(read_tail(log, _TAIL), of_all=evidence.stderr is None)
    if evidence.exit is not None and evidence.exit.exitcode and evidence.exit.exitcode != -signal.SIGABRT:
        logs = [base / log for log in (evidence.stdout, evidence.stderr) if log is not None]
        # A rank that was ended may have run on for long after a line of its log.
        evidence.said = last_words(logs, _LAST_LINES if evidence.exit.exitcode > 0 else _LAST_LINES_OF_ENDED)
        evidence.last_line = last_line(logs) if evidence.exit.exitcode > 0 else None
    evidence.error_file = read_error_file(folder / f"{prefix}error.json")
    with contextlib.suppress(OSError, ValueError):
        evidence.collectives = read_collectives(json.loads(collectives_file(folder, rank.rank).read_text()))
    return evidence


def keep_evidence(folder: Path, trial: AttemptEvidence) -> None:
    """Write the evidence into the folder of the attempt, as an artifact of a failed trial."""
    ranks = []
    for rank in trial.ranks:
        events = list(rank.events or ())
        for at, event in enumerate(events):
            if (result := event.get("result")) is not None:  # which is in the record
                events[at] = {**event, "result": replace(result, metrics={}, step_times_ms=[], output={})}
        ranks.append(replace(rank, events=None if rank.events is None else events))
    path = evidence_file(folder, trial.attempt)
    partial = path.with_suffix(".partial")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(to_json(replace(trial, ranks=ranks)))
        partial.rename(path)


def read_evidence(path: Path) -> AttemptEvidence | None:
    try:
        return AttemptEvidence.from_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _settled(trial: AttemptEvidence) -> AttemptEvidence:
    """Count ranks of a script that called ``os._exit(0)`` as done, unless the others waited for them."""
    silent, others_wait = [], []
    for rank in trial.ranks:
        seen = rank.seen()
        if rank.exit is not None and rank.exit.exitcode == 0 and not seen.finished and not seen.failures:
            silent.append(rank)
        elif not seen.finished:
            in_group = any("/torch/distributed/" in (failure.traceback or "") for failure in seen.failures.values())
            in_collective = rank.location is not None and rank.location.collective is not None
            others_wait.append(in_group or in_collective or bool(rank.exit is not None and rank.exit.stopped))
    if not others_wait or not all(others_wait):
        for rank in silent:
            assert rank.exit is not None
            done: Event = {"type": "end", "phase": "run", "sec": rank.exit.sec, "at": rank.exit.at}
            rank.events = [*(rank.events or ()), {**done, "result": ResultRecord(True)}, {"type": "lived", "at": None}]
    return trial


# What armed processes tell.


@dataclass
class Process:
    """One armed Python process. ``place``: its place among the ranks, if it is a rank. ``end``: as its parent saw it.

    ``exits``: the text or the handled exception with which it asked to exit.
    """

    name: str
    pid: int
    parent: int
    host: str
    started: float
    place: dict[str, Any] | None = None
    raised: dict[str, Any] | None = None
    exits: dict[str, Any] | None = None
    lived: float | None = None
    end: RankExit | None = None
    #: When it began to end its children.
    stops: float | None = None

    def failure(self, left: str = "") -> Failure | None:
        """Why it has failed; ``None`` if it has not.

        ``left``: prefix of the paths of its error file and log, which are read if it has reported nothing.
        """
        code = None if self.end is None else self.end.exitcode
        error = self.exits if self.raised is None and code else self.raised
        if code == 0 or (error is None and code is None):  # what was raised has not ended it
            return None
        if error is None:
            error_file = read_error_file(Path(f"{left}error.json")) if left else None
            reason = infer_exit_reason(code or 1, error_file, Path(f"{left}stderr.log") if left else None)
            return replace(reason, at=None if self.end is None else self.end.at)
        message = own_message(error["message"])
        failure = Failure("run", "exception", message, error["type"], error["traceback"], at=error["raised"])
        reason = infer_exit_reason(code or 1, None, None)
        return replace(failure, exit_code=reason.exit_code, signal=reason.signal)

    def tell(self, rank: RankEvidence, left: str) -> RankEvidence:
        """Add its reports to the evidence of its rank; ``left``: as in ``failure``."""
        end, failure = self.end, self.failure(left)
        at = self.lived if end is None else end.at
        process: Event = {"type": "env", "env": {"process": {"pid": self.pid}}}
        done: Event = {"type": "end", "phase": "run", "sec": (at or self.started) - self.started, "at": at}
        events: list[Event] = [process, {"type": "begin", "phase": "run"}]
        has_said = self.raised is not None or self.exits is not None
        by_sigterm = end is not None and end.exitcode == -signal.SIGTERM
        by_itself = end is not None and (end.stopped is False or (end.stopped is None and not by_sigterm))
        wait = None
        if failure is not None and (has_said or by_itself):
            if by_sigterm and by_itself:
                failure = replace(failure, message=f"{failure.message}, which its agent had not sent")
            events.append({**done, "failure": failure})
            wait = ((self.exits if self.raised is None else self.raised) or {}).get("wait")
        elif failure is None and (self.lived is not None or self.raised is not None):
            events += [{**done, "result": ResultRecord(True)}, {"type": "lived", "at": at}]
        return replace(rank, events=events, exit=end, wait=None if wait is None else Wait(**wait))

    def ended(self, code: int, at: float | None) -> None:
        """Note an end that no Python process has seen."""
        self.end = RankExit(code, self.pid, at, max(0.0, (at or self.started) - self.started))


def _process_of(end: RankExit | None, processes: Mapping[int, Process]) -> Process | None:
    """The process of a rank that its agent has seen end; it may have told nothing. ``processes``: by their ids."""
    if end is None:
        return None
    started = (end.at or 0.0) - end.sec
    silent = Process("", end.pid or 0, 0, "", started, lived=None if end.exitcode else end.at)
    return replace(processes.get(end.pid or 0, silent), end=end)


def read_processes(folder: Path) -> list[Process]:
    """Read the armed processes of a trial, in the order of their starts; of programs in one process, the last."""
    processes: dict[tuple[str, int], Process] = {}
    ends: dict[tuple[str, int], RankExit] = {}
    asked: set[tuple[str, int]] = set()
    for path in sorted((folder / PROCESSES).glob("*.*.events")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                entry = ast.literal_eval(line)
            except (ValueError, SyntaxError):  # torn
                continue
            if "start" in entry:
                name = path.name.removesuffix(".events")
                own = Process(name, entry["pid"], entry["parent"], entry["host"], entry["start"])
                processes[own.host, own.pid] = own
            elif "rank" in entry:
                own.place = entry
            elif "raised" in entry and entry.get("exits"):
                own.exits = entry
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
        if (process := processes.get(key)) is not None:
            # An end without a time: its parent had gone, and may or may not have ended it.
            stopped = None if end.at is None and key not in asked else key in asked
            process.end = replace(end, sec=max(0.0, (end.at or 0.0) - process.started), stopped=stopped)
    return sorted(processes.values(), key=lambda process: process.started)


def write_adopted_ends(folder: Path) -> None:
    """Note how ranks have ended that this process has adopted, because their parent left without waiting for them."""
    for process in read_processes(folder):
        if process.place is None or process.end is not None:
            continue
        with contextlib.suppress(OSError):  # its parent is still there, or another process has adopted it
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                end = {"of": pid, "code": os.waitstatus_to_exitcode(status), "at": None}
                with (folder / PROCESSES / f"{process.name}.events").open("a") as file:
                    file.write(f"\n{end!r}\n")


def move_files(folder: Path, processes: list[Process]) -> None:
    """Move stacks and collectives of ranks into the folders of their attempts."""
    for process in processes:
        if process.place is None:
            continue
        own, rank = attempt_folder(folder, process.place["attempt"]), process.place["rank"]
        stacks, collectives = own / f"rank_{rank}.stacks.log", collectives_file(own, rank)
        for name, target in (("stacks.log", stacks), ("collectives.json", collectives)):
            with contextlib.suppress(OSError):
                left = folder / PROCESSES / f"{process.name}.{name}"
                if left.stat().st_size > 0:  # else a fork has opened it before it became a rank
                    left.rename(target)


def clear(folder: Path) -> None:
    """Remove the event files that were read, and empty dumps of stacks."""
    with contextlib.suppress(OSError):
        for path in (folder / PROCESSES).iterdir():
            if path.suffix == ".events" or path.stat().st_size == 0:
                path.unlink()
        (folder / PROCESSES).rmdir()


def adopt_ranks(
    folder: Path, processes: list[Process], said: str, code: int = 0, source: str | None = None
) -> list[AttemptEvidence]:
    """The evidence of ranks that a command has started itself, attempt by attempt; moves their files to these.

    ``said``: what the command has printed, and ``code`` its exit code, for launchers that are no Python program.
    ``source``: the workload's file.
    """
    ranks = [process for process in processes if process.place is not None]
    _add_printed_ends(ranks, said, code)
    attempts: dict[int, dict[int, Process]] = {}
    for process in ranks:
        assert process.place is not None
        # The first: what else has its variables was started by it, or by a launcher that is no Python program.
        attempts.setdefault(process.place["attempt"], {}).setdefault(process.place["rank"], process)
    trials = []
    for attempt, members in sorted(attempts.items()):
        own = attempt_folder(folder, attempt)
        own.mkdir(parents=True, exist_ok=True)
        move_files(folder, list(members.values()))
        places = {rank: process.place or {} for rank, process in members.items()}
        size = max([max(members) + 1, *(place["world"] or 0 for place in places.values())])
        local = {rank: rank if place["local"] is None else place["local"] for rank, place in places.items()}
        if len(set(local.values())) < len(members):  # of several hosts
            local = dict(zip(members, members, strict=True))
        begun = min(process.started for process in members.values())
        stops = (process.stops for process in processes if process.stops is not None and process.stops >= begun)
        trial = AttemptEvidence("script", attempt, size, stopped_at=min(stops, default=None))
        trial.group = next((place["group"] for place in places.values() if place["group"]), "")
        trial.ranks = list(map(RankEvidence, range(size)))
        for rank, process in members.items():
            started = RankEvidence(rank, local[rank], socket.gethostname(), started=True)
            trial.ranks[rank] = complete_rank(started, own, f"rank_{rank}.", folder.parent, source, process)
        trials.append(_settled(trial))
    return trials


#: Lines by which launchers that are no Python programs say which rank has ended, and how.
_SAID = (
    re.compile(r"(?:mpi|prte)(?:run|exec) noticed that process rank (?P<rank>\d+) .*on signal (?P<signal>\d+)"),
    re.compile(r"Process name: \[\S+,(?P<rank>\d+)\]\s*\n\s*Exit code: +(?P<code>\d+)"),
    re.compile(r"^srun: error: .*: tasks? (?P<rank>\d+): Exited with exit code (?P<code>\d+)", re.MULTILINE),
    re.compile(r"^srun: error: .*: tasks? (?P<rank>\d+): (?P<name>[A-Z][\w ]+?)(?: \(core dumped\))?$", re.MULTILINE),
)

#: MPICH's line, which does not name the rank.
_ENDED_BY = re.compile(r"TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)")


def _add_printed_ends(ranks: list[Process], said: str, code: int) -> None:
    """Add ends that no Python process saw: as launchers print them, or the command's for a single silent rank."""
    names = {(signal.strsignal(number) or "").lower(): int(number) for number in signal.valid_signals()}
    told: dict[int, int] = {}
    for pattern in _SAID:
        for match in pattern.finditer(said):
            groups = match.groupdict("")
            number = groups.get("signal") or names.get(groups.get("name", "").lower(), 0)
            if end := int(groups.get("code") or -int(number)):
                told.setdefault(int(groups["rank"]), end)
    for process in ranks:
        if process.end is None and process.place is not None:
            raised = None if process.raised is None else process.raised["raised"]
            own = None if raised is None and process.lived is None else int(bool(raised))
            code_of_rank = told.get(process.place["rank"], own)
            if code_of_rank is not None:
                process.ended(code_of_rank, raised or process.lived)
    silent = [process for process in ranks if process.end is None]
    # A rank that starts the others ends with a code of its own.
    if len(silent) == 1 and len(ranks) > 1 and code > 0 and silent[0].parent not in {rank.pid for rank in ranks}:
        by = next((int(match[1]) for match in _ENDED_BY.finditer(said)), code - 128 if 128 < code < 160 else 0)
        silent[0].ended(-by or code, None)


#: Exceptions that a Python program raises because of a program that it has started.
_OF_A_CHILD = {"CalledProcessError", "ChildFailedError", "ProcessRaisedException", "ProcessExitedException"}


def failure_below(processes: list[Process], own: Failure) -> Failure | None:
    """Why the first process has failed, if the processes know better than its output, which says ``own``.

    It may have failed because of a program that it has started.
    """
    cause = next((process for process in processes if process.raised is not None), None)
    first = cause = next((each for each in processes if cause is not None and each.pid == cause.parent), cause)
    while cause is not None and cause.raised is not None and cause.raised["type"] in _OF_A_CHILD:
        below = [each for each in processes if each.parent == cause.pid and each.failure() is not None]
        if not below:
            break
        cause = min(below, key=lambda each: (each.end is not None and bool(each.end.stopped), each.started))
    failure = None if cause is None else cause.failure()
    if failure is None or cause is not first:
        return failure
    # What is printed of an exception does not show where its message ends.
    is_same = own.kind == "exception" and own.type == (failure.type or "").rpartition(".")[2]
    return replace(failure, exit_code=own.exit_code, signal=own.signal) if is_same else None
