"""Ranks under the real ``torchrun``: of a workload, or a user's script or command, whose ranks send no events."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.launch.child.attempt_files import (
    EventLogRelay,
    attempt_evidence,
    attempt_folder,
    event_log,
    keep_evidence,
    last_attempt,
)
from pytest_aorta.launch.child.name_service import LOOPBACK
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, TrialEvidence
from pytest_aorta.launch.diagnosis.judge import attempt_event, judge, ranks_event
from pytest_aorta.launch.launch_mode import SCRIPT, PrepareArgument, TrialPayload
from pytest_aorta.probe.collect import StaticEnv, collect_env, collect_static, surroundings, variables_now
from pytest_aorta.runtime.process_tree import reasons_against_forking
from pytest_aorta.trials.execution import DEFAULTS, NAMES, ElasticOptions, elastic_options, note_tmp
from pytest_aorta.trials.records import Failure, ResultRecord, Send

#: What the program that runs torchrun gets and leaves, in the folder of the trial.
ORDER, STATES, ERROR, LOGS = "torchrun.json", "torchrun_states.events", "torchrun_error.json", "torchrun"

_PROGRAM = "pytest_aorta.launch.child.torchrun_program"

#: Seconds between two looks at torchrun and its ranks.
POLL_INTERVAL = 0.02

_static: StaticEnv | None = None


def run_torchrun(payload: TrialPayload, send: Send) -> None:
    """Run a workload: start ``torchrun``, relay the events of rank 0, report how the ranks ended."""
    folder = Path(payload["folder"])
    order = folder / ORDER
    order.write_text(json.dumps({"payload": payload, "sys_path": sys.path}))
    options = elastic_options(payload["elastic"])
    relay, attempt, code = EventLogRelay(send), 0, 0
    with _local_rendezvous(options) as meeting:
        command = [
            *(sys.executable, "-m", _PROGRAM, "workload", str(order), "--nproc-per-node", str(payload["nproc"])),
            *_agent_options(options, payload["trial_id"]),
            *(*meeting, "--log-dir", str(folder / LOGS), "-m", _PROGRAM, "rank", str(order)),
        ]
        for returncode in _poll(subprocess.Popen(command, env=_with_stores_apart(options.max_restarts))):
            relay.forward(folder / STATES)
            relay.forward(event_log(attempt_folder(folder, attempt), 0))
            while attempt < last_attempt(folder):
                trial = _evidence(payload, attempt)
                keep_evidence(folder, trial)
                send(attempt_event(trial))
                attempt += 1
                relay.forward(event_log(attempt_folder(folder, attempt), 0))
            code = returncode or 0
    relay.forward(folder / STATES)
    trial = _evidence(payload, attempt, code)
    found = judge(trial)
    if found.failure is not None or found.cleanup is not None:
        keep_evidence(folder, trial)
    for name in (ORDER, STATES, ERROR):
        (folder / name).unlink(missing_ok=True)
    send(ranks_event(found))


def _evidence(payload: TrialPayload, attempt: int, code: int = 0, *, script: bool = False) -> TrialEvidence:
    folder = Path(payload["folder"])
    agent = AgentEnd("torchrun", code)
    with contextlib.suppress(OSError, ValueError):
        agent.error = json.loads((folder / ERROR).read_text())
    return attempt_evidence(folder, attempt, "script" if script else "torchrun", payload["source"], agent=agent)


@contextlib.contextmanager
def _local_rendezvous(options: ElasticOptions) -> Iterator[list[str]]:
    """Options of torchrun for the rendezvous of a single agent, unless ``options`` say where that is.

    torchrun's own store would listen on all interfaces.
    """
    if options.rdzv_backend == "static" and options.rdzv_endpoint is None:
        from pytest_aorta.launch.child.rendezvous import free_port

        port = [] if options.master_port is not None else ["--master-port", str(free_port())]
        yield ["--rdzv-backend", "static", *port]
        return
    if options.rdzv_endpoint is not None or options.rdzv_backend not in (None, "c10d"):
        yield _spelled({"rdzv-endpoint": options.rdzv_endpoint, "rdzv-backend": options.rdzv_backend or "c10d"})
        return
    from pytest_aorta.launch.child.rendezvous import LocalStore

    store = LocalStore(forks=not reasons_against_forking())
    try:
        at = f"{LOOPBACK}:{store.port}"
        yield ["--rdzv-backend", "c10d", "--rdzv-endpoint", at, "--rdzv-conf", "is_host=0", "--local-addr", LOOPBACK]
    finally:
        store.close()


def _agent_options(options: ElasticOptions, trial_id: str) -> list[str]:
    return _spelled(
        {
            "nnodes": ":".join(map(str, options.nnodes)),
            "rdzv-id": options.rdzv_id or trial_id,
            "max-restarts": options.max_restarts,
            "monitor-interval": options.monitor_interval,
            "redirects": options.redirects,
            "tee": options.tee,
            "role": options.role,
            "start-method": options.start_method,
            "master-addr": options.master_addr,
            "master-port": options.master_port,
            "local-addr": options.local_addr,
        }
    )


def _spelled(options: Mapping[str, object]) -> list[str]:
    return [text for name, value in options.items() if value is not None for text in (f"--{name}", str(value))]


def _with_stores_apart(max_restarts: int) -> dict[str, str]:
    """The variables for a torchrun whose ranks have a store of their own in every attempt.

    Otherwise the agent gives those of all attempts the same one, in which the ranks of a restart find the addresses of
    dead ranks, and mostly connect to these until they give up (pytorch/pytorch#135712).
    """
    return {**({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if max_restarts else {}), **os.environ}


def _poll(process: subprocess.Popen[bytes], interval: float = POLL_INTERVAL) -> Iterator[int | None]:
    while True:
        try:
            yield process.wait(interval)
            return
        except subprocess.TimeoutExpired:
            yield None


def file_digest(source: str | None) -> str:
    """Of what the fingerprint of a trial takes for the source of its script."""
    try:
        return hashlib.sha256(b"" if source is None else Path(source).read_bytes()).hexdigest()
    except OSError:
        return ""


def prepare_script(argument: PrepareArgument) -> dict[str, Any]:
    """Describe the script as ``trials.loading.describe`` does a workload, without importing it."""
    global _static
    options = dict(argument["overrides"])
    digest, source = options.pop("digest"), options.pop("source")
    variables = variables_now()
    _static = collect_static(Path(source) if source else None)
    note_tmp()
    return {
        "launch_mode": SCRIPT,
        "min_world_size": 1,
        "result_scope": "global",
        "timeout_sec": None,
        "source": source,
        "sources": {} if source is None else {Path(source).name: digest},
        "surroundings": surroundings(_static, variables),
        "config": options,
        "config_error": None,
    }


def run_script(payload: TrialPayload, send: Send) -> None:
    """Run a script or a module of the user: start ``torchrun``, wait for it, report how the ranks ended."""
    send({"type": "env", "env": collect_env(_static, [*payload["watched"], *NAMES]).to_dict()})
    script = payload["overrides"]
    words = [
        *(("--module", script["module"]) if "module" in script else (script["script"],)),
        *script["arguments"],
    ]
    start = TorchrunStart(script["cwd"], script["max_restarts"], words, sys.path, os.environ)
    follow_torchrun(payload, send, start, RanksOutput())


@dataclass(frozen=True)
class TorchrunStart:
    """What torchrun starts: ``words`` are options, the ranks' program and its arguments.

    ``sys_path`` is added to that of Python programs.
    """

    cwd: str
    max_restarts: int
    words: Sequence[str]
    sys_path: Sequence[str]
    environ: Mapping[str, str]


class RanksOutput:
    """Looks at what the ranks print while they run, every ``interval`` seconds; this one does not."""

    interval: ClassVar[float] = POLL_INTERVAL

    def look(self, attempt: int) -> None:
        """The ranks of an attempt are running, or have ended."""

    def result(self, attempt: int, code: int) -> tuple[ResultRecord, Failure | None]:
        """Of the last attempt, when torchrun has ended with this exit code, and what it has failed of, if it is 0."""
        return ResultRecord(code == 0, metrics={"returncode": code}), None


def follow_torchrun(payload: TrialPayload, send: Send, start: TorchrunStart, output: RanksOutput) -> None:
    """Start ``torchrun`` for ranks that send no events, wait for it, report how they ended."""
    folder = Path(payload["folder"])
    started = time.monotonic()
    send({"type": "begin", "phase": "setup"})
    attempt, code, ready = 0, 0, None
    with _local_rendezvous(DEFAULTS) as meeting:
        for returncode in _poll(_start(payload, folder, meeting, start), output.interval):
            if ready is None and event_log(attempt_folder(folder, 0), 0).exists():
                ready = time.monotonic()
                _send_ready(ready - started, send)
            while ready is not None and attempt < last_attempt(folder):
                send(attempt_event(_evidence(payload, attempt, script=True)))
                _send_ready(ready - started, send)
                attempt += 1
            if ready is not None:
                output.look(attempt)
            code = returncode or 0
    trial = _evidence(payload, attempt, code, script=True)
    found = judge(trial)
    if found.failure is not None:
        keep_evidence(folder, trial)
    if ready is not None and (found.failure is None or found.failure.rank is not None):
        result, failure = output.result(attempt, code)
        took = time.monotonic() - ready
        send({"type": "end", "phase": "run", "sec": took, "at": time.time(), "result": result, "failure": failure})
    (folder / ORDER).unlink(missing_ok=True)
    send(ranks_event(found))
    send({"type": "lived", "at": time.time()})


def _start(payload: TrialPayload, folder: Path, meeting: list[str], start: TorchrunStart) -> subprocess.Popen[bytes]:
    order = {
        "folder": str(folder),
        "grace": payload["grace"],
        "cwd": start.cwd,
        "sys_path": list(start.sys_path),
    }
    (folder / ORDER).write_text(json.dumps(order))
    command = [
        *(sys.executable, "-m", _PROGRAM, "script", str(folder / ORDER)),
        *("--nproc-per-node", str(payload["nproc"]), "--max-restarts", str(start.max_restarts)),
        *(*meeting, "--rdzv-id", payload["trial_id"]),
        *("--log-dir", str(folder / LOGS), "--redirects", "3", "--monitor-interval", str(POLL_INTERVAL)),
        *start.words,
    ]
    # Not in the folder of the script: there may be files with the names of modules.
    environ = {**_with_stores_apart(start.max_restarts), **start.environ}
    return subprocess.Popen(command, cwd=folder, env=environ)


def _send_ready(sec: float, send: Send) -> None:
    send({"type": "end", "phase": "setup", "sec": sec})
    send({"type": "begin", "phase": "run"})
