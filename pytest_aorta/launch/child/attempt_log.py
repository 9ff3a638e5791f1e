"""What an agent knows of the ranks of an attempt, in a file that remains when the agent has died."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_aorta.launch.child.rank_files import attempt_folder
from pytest_aorta.launch.diagnosis.trial_evidence import RankExit

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
