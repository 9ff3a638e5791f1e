"""How the ranks of a user's script ended, as the agent saw it that had started them.

Such ranks tell no stories, so the agent tells them on their behalf, in the same files; and beside these, their exit
codes.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from pytest_aorta.launch.child.event_log import story
from pytest_aorta.launch.child.rank_files import attempt_folder, find_file, read_error_file
from pytest_aorta.launch.diagnosis.exit_reason import last_words

#: Beside the stories, and cleared away with them.
_ENDS = "rank_ends.events"


def tell_start(folder: Path, attempt: int, rank: int, pid: int) -> None:
    """A rank was started. ``folder`` is the trial's."""
    path = story(attempt_folder(folder, attempt), rank)
    _append(path, {"type": "env", "env": {"process": {"pid": pid}}}, {"type": "begin", "phase": "run"})


def tell_end(folder: Path, attempt: int, rank: int, end: dict[str, Any]) -> None:
    """A rank has ended. ``end``: ``pid``, ``exitcode``, ``at``, ``sec`` since its start, and ``stopped``: whether the
    agent had asked it to end."""
    path = story(attempt_folder(folder, attempt), rank)
    done = {"type": "end", "phase": "run", "sec": end["sec"]}
    if end["exitcode"] == 0:
        _append(path, {**done, "result": {"passed": True}}, {"type": "lived", "at": end["at"]})
    elif not end["stopped"]:
        files = {name: find_file(folder, attempt, rank, name) for name in ("error.json", "stderr.log")}
        words = last_words(end["exitcode"], read_error_file(files["error.json"]), files["stderr.log"])
        at = min(end["at"], _written(files["error.json"]), _written(files["stderr.log"], words["kind"] == "exception"))
        _append(path, {**done, "failure": {"phase": "run", **words, "at": at}})
    _append(attempt_folder(folder, attempt) / _ENDS, {"rank": rank, **end})


def _written(path: Path | None, counts: bool = True) -> float:
    """When a file was written last: with its last words, and so before its writer's end was noticed."""
    return math.inf if path is None or not counts else path.stat().st_mtime


def read_ends(folder: Path, attempt: int, before: float = math.inf) -> dict[int, dict[str, Any]]:
    """How the ranks of an attempt ended that had ended ``before`` a time; empty where nobody has told."""
    ends = {}
    try:
        lines = (attempt_folder(folder, attempt) / _ENDS).read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            end = json.loads(line)
        except ValueError:
            continue  # torn: the agent was ended as it wrote
        if end["at"] <= before:
            ends[end.pop("rank")] = end
    return ends


def _append(path: Path, *events: dict[str, Any]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(fd, "".join(json.dumps(event) + "\n" for event in events).encode())
    finally:
        os.close(fd)
