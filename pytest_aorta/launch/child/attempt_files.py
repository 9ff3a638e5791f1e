"""What an attempt leaves in files: where each is, how it is written, and the evidence that is read from it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pytest_aorta.common.texts import read_tail
from pytest_aorta.launch.child.bootstrap.sitecustomize import ask_recorder
from pytest_aorta.launch.diagnosis.collectives import read_collectives
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, Launcher, RankEvidence, RankExit, TrialEvidence
from pytest_aorta.launch.diagnosis.traces import complaint_in, locate, read_dump
from pytest_aorta.trials.records import AttemptReason, Event, GroupState, Send, event_of_rank, to_json
from pytest_aorta.trials.steps import read_steps, step_file

#: Variable with the number of a rank's attempt.
ATTEMPT = "AORTA_ATTEMPT"

#: Bytes that are read of an error file; at the end of a log in which a library says why it has ended its process.
_ERROR_FILE, _TAIL = 2**20, 2**16


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Where the ranks of an attempt write, below a trial's artifacts ``folder``."""
    return folder / f"attempt_{attempt}"


def last_attempt(folder: Path) -> int:
    """The last attempt that has left something; 0 when none has."""
    numbers = [path.name.partition("_")[2] for path in folder.glob("attempt_*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def find_file(folder: Path, attempt: int, rank: int, name: str) -> Path | None:
    """What a rank of an attempt wrote below a trial's artifacts ``folder``: ``stdout.log``, ``error.json``, ..."""
    own = attempt_folder(folder, attempt) / f"rank_{rank}.{name}"
    of_torchrun = folder.glob(f"torchrun/*/attempt_{attempt}/{rank}/{name}")
    return next((path for path in (own, *of_torchrun) if path.exists()), None)


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
    """The event log of a rank in an attempt's ``folder``. The process that has waited for the rank adds its end."""
    return folder / f"rank_{rank}.events"


def ranks_with_logs(folder: Path) -> list[int]:
    names = (path.stem.partition("_")[2] for path in folder.glob("rank_*.events"))
    return sorted(int(name) for name in names if name.isdecimal())


class EventLogWriter:
    """Appends events to a log, and passes them to ``relay`` as well."""

    def __init__(self, path: Path, relay: Send | None = None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._relay = relay

    def send(self, event: Event) -> None:
        os.write(self._fd, to_json(event).encode() + b"\n")
        if self._relay is not None:
            self._relay(event)

    def close(self) -> None:
        os.close(self._fd)


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
        self._offsets[path] = offset + len(complete)
        for event in _entries(complete):
            self._send(event)


class Readiness:
    """Tells once when the first rank of a trial has done its imports. Ranks are in the ``folder`` of the trial."""

    def __init__(self, folder: Path, send: Send) -> None:
        self._folder = folder
        self._send = send
        self._told = False
        send({"type": "ranks_start"})

    def look(self) -> None:
        """Look at the ranks of the first attempt."""
        if not self._told and any(map(_is_ready, attempt_folder(self._folder, 0).glob("rank_*.events"))):
            self._told = True
            self._send({"type": "ranks_ready"})


def _is_ready(log: Path) -> bool:
    return any(event["type"] == "begin" and event["phase"] in ("setup", "run") for event in _lines(log) or ())


def write_exit(folder: Path, rank: int, end: RankExit | None, overdue: float | None = None) -> None:
    """Add the end of a rank to its event log in an attempt's ``folder``; ``overdue``: when its own deadline passed."""
    _append(event_log(folder, rank), {"type": "over", "exit": end and asdict(end), "overdue": overdue})


def _append(path: Path, entry: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk must not disturb the ranks
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            file.write(f"\n{json.dumps(entry)}\n".encode())  # a process that died has perhaps left a torn line


def _lines(path: Path) -> list[Any] | None:
    try:
        return _entries(path.read_bytes())
    except OSError:
        return None


def _entries(data: bytes) -> list[Any]:
    found = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):  # empty, or torn: its process died while it wrote
            found.append(json.loads(line))
    return found


def read_rank(rank: RankEvidence, folder: Path) -> RankEvidence:
    """With what its event log says: of its environment the process, of its steps the last."""
    lines = _lines(event_log(folder, rank.rank))
    if lines is None:
        return rank
    events = [event_of_rank(event) for event in lines if event["type"] in ("begin", "end", "env", "lived")]
    for event in events:
        if event["type"] == "env":
            event["env"] = {"process": event["env"].get("process")}
            event.pop("launcher_variables", None)
    last = read_steps(step_file(folder, rank.rank))
    found = replace(rank, events=events if last is None else [*events, last])
    if lines and (end := lines[-1])["type"] == "over":  # an earlier one is of a pytest before this one
        found.overdue = end["overdue"]
        found.exit = None if end["exit"] is None else RankExit(**end["exit"])
    return found


def has_ended(folder: Path, rank: int) -> bool:
    """Whether the end of a rank is the last entry of its event log."""
    lines = _lines(event_log(folder, rank))
    return bool(lines and lines[-1]["type"] == "over")


class AttemptRecorder:
    """Writes down what an agent sees of the ranks that it starts, attempt by attempt, in the ``folder`` of the trial.

    Subclasses look further: at event logs, or for those who wait.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Number of the attempt that runs, from 0; -1 before the first.
        self.attempt = -1
        #: Local to global ranks of this node.
        self.ranks: dict[int, int] = {}
        #: A name of the worker group that is the same on all its nodes: where its ranks meet.
        self.group = ""
        #: The processes of the ranks that have not ended.
        self.running: dict[int, int] = {}
        self._started = 0.0

    @property
    def attempt_folder(self) -> Path:
        return attempt_folder(self.folder, self.attempt)

    def begin(self, envs: Mapping[int, Mapping[str, str]]) -> None:
        """The ranks with these variables, by local rank, are about to be started."""
        self.attempt = int(envs[0].get(ATTEMPT, envs[0]["TORCHELASTIC_RESTART_COUNT"]))
        self.ranks = {local_rank: int(env["RANK"]) for local_rank, env in envs.items()}
        self.group = f"{envs[0]['MASTER_ADDR']}:{envs[0]['MASTER_PORT']}"
        self._started = time.time()
        write_start(self.attempt_folder, self.ranks, int(envs[0]["WORLD_SIZE"]), self.group)

    def started(self, pids: Mapping[int, int]) -> None:
        """The processes of all local ranks."""
        self.running = {self.ranks[local_rank]: pid for local_rank, pid in pids.items()}

    def watch(self) -> None:
        """The agent is about to look at its ranks, as it does while they run."""

    def look(self, codes: Mapping[int, int | None], *, stopped: bool) -> set[int]:
        """Record the ranks that have ended since; their local ranks.

        ``stopped``: the agent had asked those that still ran to end.

        torch itself reports one failed rank only: of two that end at once, the one whose number is lower, and so
        perhaps the peer of a crashed rank instead of that rank.
        """
        new = set()
        for local_rank, code in codes.items():
            rank = self.ranks[local_rank]
            if code is not None and rank in self.running:
                new.add(local_rank)
                now = time.time()
                self.ended(rank, RankExit(code, self.running.pop(rank), now, now - self._started, stopped))
        return new

    def ended(self, rank: int, end: RankExit) -> None:
        write_exit(self.attempt_folder, rank, end)

    def stop(self) -> None:
        """The ranks that still run are about to be asked to end."""
        write_stop(self.attempt_folder, time.time())

    def on_state(self, state: GroupState) -> None:
        """The worker group has a new state."""

    def on_restart(self, reason: AttemptReason) -> None:
        """All ranks of an attempt have ended, and will be started again."""

    def has_left(self, local_rank: int) -> bool:
        """Whether a rank that has ended with exit code 0 was not done, so that the attempt has failed."""
        return False


def _attempt_log(folder: Path) -> Path:
    # What the agent knows of the attempt, which remains when it has died.
    return folder / "attempt.events"


def write_start(folder: Path, ranks: Mapping[int, int], world_size: int, group: str) -> None:
    started = {"ranks": list(ranks.items()), "world_size": world_size, "group": group, "host": socket.gethostname()}
    _append(_attempt_log(folder), started)


def write_stop(folder: Path, at: float) -> None:
    """The ranks of an attempt's ``folder`` that still run were asked to end from then on."""
    _append(_attempt_log(folder), {"stopped_at": at})


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
    """Of the ranks of this node, from the files in the trial's ``folder``; of those of other nodes, the numbers.

    ``source`` is the workload's file.
    """
    trial = TrialEvidence(launcher, attempt, agent=agent, overdue=overdue, stalled=stalled)
    own = attempt_folder(folder, attempt)
    for entry in _lines(_attempt_log(own)) or ():
        if "stopped_at" in entry:
            trial.stopped_at = trial.stopped_at or entry["stopped_at"]
            continue
        trial.world_size, trial.group = entry["world_size"], entry["group"]
        trial.ranks = [RankEvidence(rank) for rank in range(entry["world_size"])]
        for local_rank, rank in entry["ranks"]:
            find = functools.partial(find_file, folder, attempt, rank)
            started = RankEvidence(rank, local_rank, entry["host"], started=True)
            trial.ranks[rank] = complete_rank(started, own, find, folder.parent, source)
    return trial


def complete_rank(
    rank: RankEvidence, folder: Path, find: Callable[[str], Path | None], base: Path, source: str | None
) -> RankEvidence:
    """With what the rank has left: its event log is in ``folder``, and ``find`` knows its logs and its error file.

    Paths of logs become relative to ``base``; ``source`` is the workload's file.
    """
    found = read_rank(rank, folder)
    logs = {stream: path for stream in ("stdout", "stderr", "stacks") if (path := find(f"{stream}.log")) is not None}
    if "stacks" in logs and logs["stacks"].stat().st_size == 0:  # an empty one is cleared away
        del logs["stacks"]
    if "stacks" in logs:
        found.location = locate(read_dump(logs["stacks"]), source)
    if found.exit is not None and found.exit.exitcode == -signal.SIGABRT:
        stderr = logs.get("stderr", folder.parent / "stderr.log")
        found.complaint = complaint_in(read_tail(stderr, _TAIL), of_all="stderr" not in logs)
    found.error_file = read_error_file(find("error.json"))
    with contextlib.suppress(OSError, ValueError):
        found.collectives = read_collectives(json.loads(collectives_file(folder, rank.rank).read_text()))
    shown = {stream: path.relative_to(base).as_posix() for stream, path in logs.items()}
    found.stdout, found.stderr, found.stacks = (shown.get(stream) for stream in ("stdout", "stderr", "stacks"))
    return found


def collectives_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.collectives.json"


def recorder_socket(folder: Path, rank: int, sockets: Path) -> Path:
    """Where a rank serves its flight recorder: not below the results, whose paths may be too long for a socket."""
    return sockets / f"{folder.name}.{rank}"


def request_trace(path: Path) -> dict[str, Any] | None:
    """Which collectives a rank of this host has entered, by its flight recorder, while it may hang.

    ``path`` is its socket; ``None`` without an answer in time.
    """
    with contextlib.suppress(ValueError):
        trace = json.loads(ask_recorder(str(path)))
        return trace if isinstance(trace, dict) else None
    return None


def save_collectives(folder: Path, rank: int, sockets: Path) -> None:
    """Keep what the flight recorder of a running rank has, in the ``folder`` of its attempt."""
    recorded = request_trace(recorder_socket(folder, rank, sockets))
    if recorded is not None and recorded.get("entries"):
        with contextlib.suppress(OSError):
            collectives_file(folder, rank).write_text(json.dumps(recorded))


def evidence_file(folder: Path, attempt: int) -> Path:
    return attempt_folder(folder, attempt) / "evidence.json"


def keep_evidence(folder: Path, trial: TrialEvidence) -> None:
    """Write what the judge had before it into the folder of the attempt, as an artifact of a trial that failed."""
    short = [replace(rank, events=rank.events and list(map(_in_short, rank.events))) for rank in trial.ranks]
    path = evidence_file(folder, trial.attempt)
    partial = path.with_suffix(".partial")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(replace(trial, ranks=short).to_json())
        partial.rename(path)


def _in_short(event: Event) -> Event:
    if event["type"] == "env":
        return {"type": "env", "env": event["env"]}
    if (result := event.get("result")) is not None:
        named: list[dict[str, Any]] = [
            {key: each[key] for key in ("rank", "iteration") if key in each} for each in result.failure_details[:8]
        ]
        return {**event, "result": type(result)(result.passed, None, result.first_failure_iteration, named)}
    return event


def read_evidence(path: Path) -> TrialEvidence | None:
    try:
        return TrialEvidence.from_json(path.read_bytes())
    except (OSError, ValueError):
        return None
