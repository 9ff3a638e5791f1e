"""Ranks under the real ``torchrun``, a command of its own with fresh interpreters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from pytest_aorta.launch.living import live, prepare
from pytest_aorta.launch.ranks import find_log, rank_records, rank_stacks, ranks_event, read_story, story, teller
from pytest_aorta.runtime.processes.task_main import arm
from pytest_aorta.trials.lifecycle import Send

_PAYLOAD = "torchrun.json"
_FAILURES = "torchrun_failures.json"
_LOGS = "torchrun"

#: Seconds between two looks at what rank 0 has told.
_RELAY_INTERVAL = 0.02


def run_torchrun(payload: dict[str, Any], send: Send) -> None:
    """Start ``torchrun``, relay what rank 0 tells, tell how the ranks ended. ``payload`` as in ``launch.child.run``."""
    folder = Path(payload["folder"])
    (folder / _PAYLOAD).write_text(json.dumps({**payload, "sys_path": sys.path}))
    command = [
        *(sys.executable, "-m", "pytest_aorta.launch.torchrun", "torchrun", str(folder / _FAILURES)),
        *("--nproc-per-node", str(payload["nproc"])),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", payload["trial_id"]),
        *("--log-dir", str(folder / _LOGS), "--redirects", "3"),
        *("-m", "pytest_aorta.launch.torchrun", "rank", str(folder / _PAYLOAD)),
    ]
    process = subprocess.Popen(command)
    told = 0
    while True:
        try:
            code: int | None = process.wait(_RELAY_INTERVAL)
        except subprocess.TimeoutExpired:
            code = None
        told = _relay(story(folder, 0), told, send)
        if code is not None:
            break
    try:
        failures = json.loads((folder / _FAILURES).read_text())
    except (OSError, ValueError):
        failures = {}
    endings = {int(rank): ending for rank, ending in failures.items()}
    if endings:
        endings |= _quiet_ends(folder, set(range(payload["nproc"])) - set(endings))
    records = rank_records(lambda _: folder, payload["nproc"], endings, lambda rank, name: find_log(folder, rank, name))
    event = ranks_event(records)
    if code != 0 and event["failure"] is None and event["cleanup"] is None:
        message = f"torchrun ended with exit code {code}; see stderr"
        event["failure"] = {"phase": "setup", "kind": "exit_code", "exit_code": code, "message": message}
    (folder / _PAYLOAD).unlink(missing_ok=True)
    (folder / _FAILURES).unlink(missing_ok=True)
    send(event)


def _quiet_ends(folder: Path, ranks: set[int]) -> dict[int, dict[str, Any]]:
    """Of ``ranks`` that torchrun does not count as failed, those that are gone: they ended with exit code 0."""
    pids = {rank: ((read_story(folder, rank).env or {}).get("process") or {}).get("pid") for rank in ranks}
    return {rank: {"pid": pid, "exitcode": 0} for rank, pid in pids.items() if pid and not psutil.pid_exists(pid)}


def _relay(path: Path, told: int, send: Send) -> int:
    """Send the complete lines of a story that were not sent yet; the new number of bytes sent."""
    try:
        with path.open("rb") as file:
            file.seek(told)
            data = file.read()
    except OSError:
        return told
    complete = data[: data.rfind(b"\n") + 1]
    for line in complete.splitlines():
        send(json.loads(line))
    return told + len(complete)


def torchrun_main(failures: Path, arguments: list[str]) -> int:
    """torchrun's own entry point, with its failures kept as data; the exit status that torchrun would have."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    try:
        main(arguments)
    except ChildFailedError as error:
        endings = {
            rank: {"pid": f.pid, "exitcode": f.exitcode, "at": f.timestamp} for rank, f in error.failures.items()
        }
        failures.write_text(json.dumps(endings))
        print(error, file=sys.stderr)
        return 1
    return 0


def rank_main(payload: dict[str, Any]) -> int:
    """The life of one rank, in an interpreter that torchrun started."""
    sys.path.extend(path for path in payload["sys_path"] if path not in sys.path)
    folder, rank = Path(payload["folder"]), int(os.environ["RANK"])
    arm(rank_stacks(folder, rank))
    prepare(payload)
    return 0 if live(payload, teller(folder, rank)) else 1


if __name__ == "__main__":
    if sys.argv[1] == "torchrun":
        sys.exit(torchrun_main(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(rank_main(json.loads(Path(sys.argv[2]).read_text())))
