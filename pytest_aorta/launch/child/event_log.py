"""The event log of a rank: its events, one JSON line each, in a file that remains when the rank has died."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pytest_aorta.trials.events import Send, TrialEvent
from pytest_aorta.trials.outcome import Observed
from pytest_aorta.trials.steps import read_steps, step_file


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
