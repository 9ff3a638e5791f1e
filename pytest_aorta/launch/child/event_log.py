"""What each rank tells of itself while it lives: events, in a file that outlives it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pytest_aorta.trials.events import Send, TrialEvent
from pytest_aorta.trials.outcome import Observed


def story(folder: Path, rank: int) -> Path:
    """The file in which a rank tells its events, one JSON line each."""
    return folder / f"rank_{rank}.events"


def teller(folder: Path, rank: int, relay: Send | None = None) -> Send:
    """A ``send`` for a rank: into its story, and through ``relay`` where it has one."""
    fd = os.open(story(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def send(event: TrialEvent) -> None:
        os.write(fd, json.dumps(event).encode() + b"\n")
        if relay is not None:
            relay(event)

    return send


class Relay:
    """Sends what a rank has told, attempt after attempt, from its stories."""

    def __init__(self, send: Send) -> None:
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
        if rank.isdecimal() and (pid := pid_of(read_story(folder, int(rank)))) is not None:
            found[int(rank)] = pid
    return dict(sorted(found.items()))


def pid_of(seen: Observed) -> int | None:
    """As the rank's own snapshot of its environment has it."""
    pid = ((seen.env or {}).get("process") or {}).get("pid")
    return pid if isinstance(pid, int) else None
