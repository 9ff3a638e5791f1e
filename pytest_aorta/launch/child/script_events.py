"""Event logs of the ranks of a user's script, written by the agent that has started them.

A script sends no events, so the agent writes them in its place.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path

from pytest_aorta.launch.child.event_log import event_log
from pytest_aorta.launch.child.rank_files import attempt_folder, find_file, read_error_file
from pytest_aorta.launch.diagnosis.exit_reason import infer_exit_reason
from pytest_aorta.launch.diagnosis.trial_evidence import RankExit
from pytest_aorta.trials.events import EndEvent, EnvEvent


def record_start(folder: Path, attempt: int, rank: int, pid: int) -> None:
    """A rank was started. ``folder`` is the trial's."""
    env: EnvEvent = {"type": "env", "env": {"process": {"pid": pid}}}
    _append(event_log(attempt_folder(folder, attempt), rank), env, {"type": "begin", "phase": "run"})


def record_exit(folder: Path, attempt: int, rank: int, end: RankExit) -> None:
    """A rank has ended. ``folder`` is the trial's."""
    log = event_log(attempt_folder(folder, attempt), rank)
    event: EndEvent = {"type": "end", "phase": "run", "sec": end["sec"], "at": end["at"]}
    if end["exitcode"] == 0:
        _append(log, {**event, "result": {"passed": True}}, {"type": "lived", "at": end["at"]})
    elif not end["stopped"]:
        files = {name: find_file(folder, attempt, rank, name) for name in ("error.json", "stderr.log")}
        failure = infer_exit_reason(end["exitcode"], read_error_file(files["error.json"]), files["stderr.log"])
        if end["exitcode"] == -signal.SIGTERM:
            failure["message"] += ", which its agent had not sent"
        # A rank writes why it fails before its exit is noticed.
        written = [files["error.json"], files["stderr.log"] if failure["kind"] == "exception" else None]
        failure["at"] = min([end["at"], *(path.stat().st_mtime for path in written if path is not None)])
        _append(log, {**event, "failure": failure})


def _append(path: Path, *lines: Mapping[str, object]) -> None:
    with path.open("ab", buffering=0) as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
