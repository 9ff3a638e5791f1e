"""What an attempt leaves in files: where each is, how it is written, and the evidence that is read from it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pytest_aorta.common.file_tail import read_tail
from pytest_aorta.launch.diagnosis.evidence import (
    AgentEnd,
    LastCollective,
    Launcher,
    RankEvidence,
    RankExit,
    RankReport,
    TrialEvidence,
    WhereItWas,
    unknown_rank,
)
from pytest_aorta.launch.diagnosis.traces import complaint_in, last_collective, locate, read_dump
from pytest_aorta.trials.events import ResultData, Send, TrialEvent
from pytest_aorta.trials.outcome import Observed
from pytest_aorta.trials.steps import read_steps, step_file

#: Variable with the number of a rank's attempt.
ATTEMPT = "AORTA_ATTEMPT"

#: Bytes that are read of an error file.
_ERROR_FILE = 2**20


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Where the ranks of an attempt write, below a trial's artifacts ``folder``."""
    return folder / f"attempt_{attempt}"


def last_attempt(folder: Path) -> int:
    """The last attempt that has left something; 0 when none has."""
    numbers = [path.name.partition("_")[2] for path in folder.glob("attempt_*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


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
    """What torch's ``record``, or a workload, has written to a rank's error file; ``None`` without one."""
    if path is None:
        return None
    try:
        content = json.loads(path.read_bytes()[:_ERROR_FILE])
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else {"message": content}


def event_log(folder: Path, rank: int) -> Path:
    """The event log of a rank in an attempt's ``folder``."""
    return folder / f"rank_{rank}.events"


class EventLogWriter:
    """Appends events to a log, and passes them to ``relay`` as well."""

    def __init__(self, path: Path, relay: Send | None = None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._relay = relay

    def send(self, event: TrialEvent) -> None:
        """Append one event."""
        os.write(self._fd, json.dumps(event).encode() + b"\n")
        if self._relay is not None:
            self._relay(event)


class EventLogRelay:
    """Sends the events of growing logs."""

    def __init__(self, send: Send) -> None:
        self._send = send
        #: Bytes of each log whose events were sent.
        self._offsets: dict[Path, int] = {}

    def forward(self, path: Path) -> None:
        """Send the complete lines of a log that were not sent yet."""
        offset = self._offsets.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except OSError:
            return
        complete = data[: data.rfind(b"\n") + 1]
        for line in complete.splitlines():
            self._send(json.loads(line))
        self._offsets[path] = offset + len(complete)


def read_event_log(folder: Path, rank: int) -> Observed:
    """What a rank has reported, as far as it got."""
    seen = Observed()
    try:
        text = event_log(folder, rank).read_text(errors="replace")
    except OSError:
        return seen
    for line in text.splitlines():
        try:
            seen.see(json.loads(line))
        except ValueError:
            continue  # empty, or torn: the rank died while it wrote
    if (last := read_steps(step_file(folder, rank))) is not None:
        seen.see(last)
    return seen


def pid_of(seen: Observed) -> int | None:
    """The process of a rank, from its environment snapshot."""
    pid = ((seen.env or {}).get("process") or {}).get("pid")
    return pid if isinstance(pid, int) else None


def pids_of_ranks(folder: Path) -> dict[int, int]:
    """The processes of all ranks with an event log in an attempt's ``folder``."""
    found = {}
    for path in folder.glob("rank_*.events"):
        rank = path.stem.partition("_")[2]
        if rank.isdecimal() and (pid := pid_of(read_event_log(folder, int(rank)))) is not None:
            found[int(rank)] = pid
    return dict(sorted(found.items()))


#: Beside the event logs, and removed with them.
_FILE = "attempt.events"


@dataclass
class AttemptLog:
    """One attempt, as its agent has seen it.

    Attributes:
        ranks: those of this node that were started: global to local ranks.
        world_size: ranks of all nodes; ``None`` when no rank was started.
        host: where these ranks ran.
        group: name of the worker group, the same on all its nodes.
        exits: of the ranks whose exit was seen.
        stopped_at: when the agent first asked a rank to end.
    """

    ranks: dict[int, int] = field(default_factory=dict)
    world_size: int | None = None
    host: str | None = None
    group: str | None = None
    exits: dict[int, RankExit] = field(default_factory=dict)
    stopped_at: float | None = None


def write_start(
    folder: Path, attempt: int, ranks: Mapping[int, int], world_size: int, group: str | None = None
) -> None:
    """The ranks of this node are about to be started. ``folder`` is the trial's."""
    attempt_folder(folder, attempt).mkdir(parents=True, exist_ok=True)
    started = {"ranks": [list(pair) for pair in ranks.items()], "world_size": world_size, "group": group}
    _append(folder, attempt, {**started, "host": socket.gethostname()})


def write_exit(folder: Path, attempt: int, rank: int, end: RankExit) -> None:
    """A rank has ended."""
    _append(folder, attempt, {"rank": rank, **end})


def write_stop(folder: Path, attempt: int) -> None:
    """Ranks are about to be asked to end."""
    _append(folder, attempt, {"stopped_at": time.time()})


def read_attempt_log(folder: Path, attempt: int) -> AttemptLog:
    """As far as it was written."""
    log = AttemptLog()
    try:
        lines = (attempt_folder(folder, attempt) / _FILE).read_text().splitlines()
    except OSError:
        return log
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # torn: the agent was ended as it wrote
        if "ranks" in entry:
            log.ranks = {int(rank): int(local) for rank, local in entry["ranks"]}
            log.world_size, log.host, log.group = entry["world_size"], entry["host"], entry["group"]
        elif "stopped_at" in entry:
            log.stopped_at = log.stopped_at or entry["stopped_at"]
        else:
            log.exits.setdefault(entry.pop("rank"), entry)
    return log


def _append(folder: Path, attempt: int, entry: Mapping[str, Any]) -> None:
    with (attempt_folder(folder, attempt) / _FILE).open("ab", buffering=0) as file:
        file.write(json.dumps(entry).encode() + b"\n")


#: Bytes at the end of a log in which a library says why it has ended its process.
_TAIL = 2**16


@dataclass(frozen=True)
class RankFiles:
    """Where the files of a trial's ranks are.

    Attributes:
        event_folder: the folder of a rank's event log.
        log: path of a rank's ``stdout``, ``stderr`` or ``stacks``, relative to ``base``; ``None`` where there is none.
        error_file: of a rank, as torch's ``record`` writes it.
        base: the trial file's folder.
    """

    event_folder: Callable[[int], Path]
    log: Callable[[int, str], str | None]
    error_file: Callable[[int], Path | None]
    base: Path

    @classmethod
    def of_attempt(cls, folder: Path, attempt: int) -> RankFiles:
        """Below a trial's artifacts ``folder``."""
        return cls(
            event_folder=lambda rank: attempt_folder(folder, attempt),
            log=lambda rank, stream: find_log(folder, attempt, rank, stream),
            error_file=lambda rank: find_file(folder, attempt, rank, "error.json"),
            base=folder.parent,
        )


def attempt_evidence(
    folder: Path,
    attempt: int,
    launcher: Launcher,
    source: str | None,
    *,
    agent: AgentEnd | None = None,
    overdue: float | None = None,
    stalled: float | None = None,
) -> TrialEvidence:
    """Of the ranks of this node; of those of other nodes, the numbers.

    ``folder`` is the trial's, ``source`` the workload's file.
    """
    log = read_attempt_log(folder, attempt)
    files = RankFiles.of_attempt(folder, attempt)
    ranks: dict[int, RankEvidence] = {rank: unknown_rank(rank) for rank in range(log.world_size or 0)}
    for rank, local_rank in log.ranks.items():
        ranks[rank] = {
            **rank_evidence(files, rank, log.exits.get(rank), source),
            "local_rank": local_rank,
            "host": log.host,
            "started": True,
        }
    return {
        "launcher": launcher,
        "attempt": attempt,
        "world_size": log.world_size,
        "group": log.group,
        "ranks": [ranks[rank] for rank in sorted(ranks)],
        "stopped_at": log.stopped_at,
        "overdue": overdue,
        "stalled": stalled,
        "agent": agent,
    }


def rank_evidence(files: RankFiles, rank: int, end: RankExit | None, source: str | None) -> RankEvidence:
    """What one rank has left."""
    folder = files.event_folder(rank)
    logs = {stream: files.log(rank, stream) for stream in ("stdout", "stderr", "stacks")}
    aborted = end is not None and end["exitcode"] == -signal.SIGABRT and logs["stderr"] is not None
    return {
        **unknown_rank(rank),
        "exit": end,
        "report": read_report(folder, rank),
        "location": None if logs["stacks"] is None else _location(files.base / logs["stacks"], source),
        "collective": _read_collective(folder, rank),
        "error_file": read_error_file(files.error_file(rank)),
        "complaint": complaint_in(read_tail(files.base / logs["stderr"], _TAIL))
        if aborted and logs["stderr"]
        else None,
        "stdout": logs["stdout"],
        "stderr": logs["stderr"],
        "stacks": logs["stacks"],
    }


def read_report(folder: Path, rank: int) -> RankReport | None:
    """The event log of a rank, as far as it got; ``None`` where there is none."""
    try:
        text = event_log(folder, rank).read_text(errors="replace")
    except OSError:
        return None
    report: RankReport = {
        "phases": [],
        "failures": [],
        "result": None,
        "finished": False,
        "finished_at": None,
        "pid": None,
        "progress": read_steps(step_file(folder, rank)),
        "seeds": None,
    }
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # empty, or torn: the rank died while it wrote
            _take(report, json.loads(line))
    return report


def left_early(folder: Path, rank: int) -> bool:
    """Whether a rank that has ended with exit code 0 had not come to an end of its ``run()``."""
    report = read_report(folder, rank)
    return report is None or not (report["finished"] or report["result"] is not None or report["failures"])


def _take(report: RankReport, event: TrialEvent) -> None:
    phases = report["phases"]
    if event["type"] == "begin":
        phases.append({"phase": event["phase"], "began": event.get("at"), "ended": None, "over": False})
    elif event["type"] == "end":
        if not phases or phases[-1]["phase"] != event["phase"]:
            phases.append({"phase": event["phase"], "began": None, "ended": None, "over": False})
        phases[-1] |= {"ended": event.get("at"), "over": True}
        report["result"] = event.get("result", report["result"])
        if "failure" in event:
            report["failures"].append(event["failure"])
    elif event["type"] == "env":
        pid = (event["env"].get("process") or {}).get("pid")
        report["pid"] = pid if isinstance(pid, int) else None
        report["seeds"] = event.get("seeds")
    elif event["type"] == "lived":
        report["finished"], report["finished_at"] = True, event.get("at")
    elif event["type"] == "progress":
        report["progress"] = event if report["progress"] is None else report["progress"]


def _location(stacks: Path, source: str | None) -> WhereItWas | None:
    found = locate(read_dump(stacks), source)
    return None if found is None else {"text": found.text, "collective": found.collective}


def collectives_file(folder: Path, rank: int) -> Path:
    """Where the trace of a rank's flight recorder is kept, in an attempt's ``folder``."""
    return folder / f"rank_{rank}.collectives.json"


def _read_collective(folder: Path, rank: int) -> LastCollective | None:
    with contextlib.suppress(OSError, ValueError):
        return last_collective(json.loads(collectives_file(folder, rank).read_text()))
    return None


def keep_evidence(folder: Path, trial: TrialEvidence) -> None:
    """Write what the judge had before it into the folder of the attempt, as an artifact of a trial that failed."""
    with contextlib.suppress(OSError):
        path = evidence_file(folder, trial["attempt"])
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({**trial, "ranks": [_in_short(rank) for rank in trial["ranks"]]}))
        partial.rename(path)


def _in_short(rank: RankEvidence) -> RankEvidence:
    """Without what is in the trial file and has no influence on the judgement."""
    report = rank["report"]
    if report is None:
        return rank
    result: ResultData | None = None if report["result"] is None else {"passed": report["result"]["passed"]}
    return {**rank, "report": {**report, "result": result, "seeds": None}}


def evidence_file(folder: Path, attempt: int) -> Path:
    """The file of ``keep_evidence``."""
    return attempt_folder(folder, attempt) / "evidence.json"


def read_evidence(path: Path) -> TrialEvidence | None:
    """What ``keep_evidence`` has written; ``None`` where there is nothing."""
    try:
        return cast(TrialEvidence, json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


#: What ``tempfile`` remembered in this process before ``use_for_agent``.
_tempdir_before: str | None = None


def use_for_agent(folder: str) -> None:
    """Have this process, and an agent that it starts, make their temporary files in ``folder``, if it is one.

    It is removed with the trial; the TMPDIR of a failed trial is kept for what the workload has left there. torch's
    agent leaves error files of ranks, and the pipe of its watchdog, which some versions make in ``/tmp``.
    """
    global _tempdir_before
    if not os.path.isdir(folder):
        return
    if os.environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1":
        os.environ.setdefault("TORCHELASTIC_TIMER_FILE", os.path.join(folder, "watchdog"))
    _tempdir_before, tempfile.tempdir = tempfile.tempdir, folder


def use_for_rank(folder: str) -> None:
    """In a rank that was forked from that process: have ``tempfile`` look as it did before."""
    if tempfile.tempdir == folder:
        tempfile.tempdir = _tempdir_before
