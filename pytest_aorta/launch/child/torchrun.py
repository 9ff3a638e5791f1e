"""Ranks under the real ``torchrun``, a command of its own with fresh interpreters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from pytest_aorta.launch.child.event_log import Relay, read_story, story
from pytest_aorta.launch.child.rank_files import attempt_folder, last_attempt
from pytest_aorta.launch.child.rank_main import live_as_rank
from pytest_aorta.launch.child.rank_records import mark_outlived, records_of_attempt
from pytest_aorta.launch.diagnosis.root_cause import ranks_event, root_cause
from pytest_aorta.trials.elastic_options import elastic_options
from pytest_aorta.trials.events import FailureData, Phase, Send
from pytest_aorta.trials.outcome import signal_name

_PAYLOAD = "torchrun.json"
_FAILURES = "torchrun_failures.json"
_STATES = "torchrun_states.events"
_LOGS = "torchrun"

#: Of a rank that torchrun has not seen end.
OUTLIVED = "torchrun ended before this rank did"

#: Seconds between two looks at what rank 0 has told.
_RELAY_INTERVAL = 0.02


def run_torchrun(payload: dict[str, Any], send: Send) -> None:
    """Start ``torchrun``, relay what rank 0 tells, tell how the ranks ended. ``payload`` as in ``launch.child.run``."""
    folder = Path(payload["folder"])
    (folder / _PAYLOAD).write_text(json.dumps({**payload, "sys_path": sys.path}))
    command = [
        *(sys.executable, "-m", "pytest_aorta.launch.child.torchrun", "torchrun", str(folder / _FAILURES)),
        *("--nproc-per-node", str(payload["nproc"]), *_agent_options(payload)),
        *("--log-dir", str(folder / _LOGS)),
        *("-m", "pytest_aorta.launch.child.torchrun", "rank", str(folder / _PAYLOAD)),
    ]
    process = subprocess.Popen(command)
    relay, attempt = Relay(send), 0
    while True:
        try:
            code: int | None = process.wait(_RELAY_INTERVAL)
        except subprocess.TimeoutExpired:
            code = None
        relay.look(folder / _STATES)
        relay.look(story(attempt_folder(folder, attempt), 0))
        while attempt < last_attempt(folder):
            _tell_attempt(folder, attempt, payload["nproc"], send)
            attempt += 1
            relay.look(story(attempt_folder(folder, attempt), 0))
        if code is not None:
            break
    try:
        failures = json.loads((folder / _FAILURES).read_text())
    except (OSError, ValueError):
        failures = {}
    endings = {int(rank): ending for rank, ending in failures.items()}
    if endings:
        ranks = set(range(payload["nproc"])) - set(endings)
        endings |= _quiet_ends(attempt_folder(folder, attempt), ranks)
    records = records_of_attempt(folder, attempt, payload["nproc"], endings)
    if code < 0:
        mark_outlived(records, OUTLIVED)
    event = ranks_event(records)
    ready = any(record["pid"] is not None for record in records)
    if code < 0 or (event["failure"] is None and event["cleanup"] is None):
        event["failure"] = failure_of_torchrun(code, ready) or event["failure"]
    for name in (_PAYLOAD, _FAILURES, _STATES):
        (folder / name).unlink(missing_ok=True)
    send(event)


def failure_of_torchrun(code: int, ready: bool) -> FailureData | None:
    """What torchrun's own end says; before the ranks were ``ready``, nothing about the workload."""
    phase: Phase = "run" if ready else "setup"
    if code < 0:
        name = signal_name(-code)
        message = f"torchrun was ended by {name}"
        return {"phase": phase, "kind": "signal", "signal": name, "message": message, "rank": None}
    if code > 0:
        message = f"torchrun ended with exit code {code}; see stderr"
        return {"phase": phase, "kind": "exit_code", "exit_code": code, "message": message, "rank": None}
    return None


def _agent_options(payload: Mapping[str, Any]) -> list[str]:
    options = elastic_options(payload["elastic"])
    given = {
        "nnodes": ":".join(map(str, options.nnodes)),
        "rdzv-backend": options.rdzv_backend or "c10d",
        "rdzv-endpoint": options.rdzv_endpoint or "localhost:0",
        "rdzv-id": options.rdzv_id or payload["trial_id"],
        "max-restarts": options.max_restarts,
        "monitor-interval": options.monitor_interval,
        "redirects": options.redirects,
        "tee": options.tee,
        "role": options.role,
        "start-method": options.start_method,
    }
    return [text for name, value in given.items() if value is not None for text in (f"--{name}", str(value))]


def _tell_attempt(folder: Path, attempt: int, nproc: int, send: Send) -> None:
    """torchrun keeps to itself how an attempt ended that is not the last; the ranks' stories and error files tell."""
    stories = {rank: read_story(attempt_folder(folder, attempt), rank) for rank in range(nproc)}
    failed = [rank for rank, seen in stories.items() if not {"setup", "run"}.isdisjoint(seen.failures)]
    endings = {rank: {"exitcode": 1} for rank in failed}
    records = records_of_attempt(folder, attempt, nproc, endings)
    failure = root_cause(records)
    send({"type": "attempt", "attempt": attempt, "reason": "failure", "ranks": records, "failure": failure})


def _quiet_ends(folder: Path, ranks: set[int]) -> dict[int, dict[str, Any]]:
    """Of ``ranks`` that torchrun does not count as failed, those that are gone: they ended with exit code 0."""
    pids = {rank: ((read_story(folder, rank).env or {}).get("process") or {}).get("pid") for rank in ranks}
    return {rank: {"pid": pid, "exitcode": 0} for rank, pid in pids.items() if pid and not psutil.pid_exists(pid)}


def torchrun_main(failures: Path, arguments: list[str]) -> int:
    """torchrun's own entry point, with its failures kept as data; the exit status that torchrun would have."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import api
    from torch.distributed.run import main

    from pytest_aorta.launch.child.torch_agent import telling_agent

    fd = os.open(failures.with_name(_STATES), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    agent = telling_agent(lambda event: os.write(fd, json.dumps(event).encode() + b"\n"))
    setattr(api, "LocalElasticAgent", agent)  # noqa: B010  (torch's own, but for the telling; no exported name)
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
    return 0 if live_as_rank(payload, int(os.environ["TORCHELASTIC_RESTART_COUNT"]), prepared=False) else 1


if __name__ == "__main__":
    if sys.argv[1] == "torchrun":
        sys.exit(torchrun_main(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(rank_main(json.loads(Path(sys.argv[2]).read_text())))
