"""Ranks under the real ``torchrun``: of a workload, or of a script or command, whose ranks send no events."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from pytest_aorta.launch.child.attempt_files import (
    EventLogRelay,
    Readiness,
    attempt_evidence,
    attempt_folder,
    event_log,
    keep_evidence,
    last_attempt,
)
from pytest_aorta.launch.child.process_files import clear, move_files, settle
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, Launcher, TrialEvidence
from pytest_aorta.launch.diagnosis.judge import attempt_event, judge, ranks_event
from pytest_aorta.launch.launch_mode import COMMAND_RANKS_TARGET, SCRIPT, PrepareArgument, TrialPayload
from pytest_aorta.launch.nodes import LOOPBACK
from pytest_aorta.probe.collect import StaticEnv, collect_env, collect_static, surroundings
from pytest_aorta.probe.software import package_list
from pytest_aorta.probe.variables import settings
from pytest_aorta.runtime.process_tree import reasons_against_forking
from pytest_aorta.trials.command_line import COMMAND_TARGET
from pytest_aorta.trials.execution import DEFAULTS, NAMES, ElasticOptions, elastic_options, note_tmp
from pytest_aorta.trials.loading import describe, load_class
from pytest_aorta.trials.records import Event, Failure, ResultRecord, Send

#: What the program that runs torchrun gets and leaves, in the folder of the trial.
ORDER, STATES, ERROR, LOGS = "torchrun.json", "torchrun_states.events", "torchrun_error.json", "torchrun"

_PROGRAM = "pytest_aorta.launch.child.torchrun_program"

#: Seconds between two looks at torchrun, and at the logs of a command.
_INTERVAL, _INTERVAL_OF_COMMAND = 0.02, 0.005

_static: StaticEnv | None = None


def run_torchrun(payload: TrialPayload, send: Send) -> None:
    """Run a workload: relay the events of rank 0, report how the ranks ended."""
    folder = Path(payload["folder"])
    relay = EventLogRelay(send)
    readiness = Readiness(folder, send)

    def look(attempt: int) -> None:
        readiness.look()
        relay.forward(folder / STATES)
        relay.forward(event_log(attempt_folder(folder, attempt), 0))

    words = ["-m", _PROGRAM, "rank", str(folder / ORDER)]
    trial = _follow(payload, send, "torchrun", elastic_options(payload["elastic"]), words, look)
    _report(folder, trial, send)


def prepare_program(argument: PrepareArgument) -> dict[str, Any]:
    """Describe a script or command as ``trials.loading.describe`` does a workload, without running it."""
    global _static
    variables = settings(os.environ)
    if argument["target"] == COMMAND_RANKS_TARGET:
        description = describe(load_class(COMMAND_TARGET), argument["overrides"], argument["steps"])
    else:
        options = dict(argument["overrides"])
        digest, source = options.pop("digest"), options.pop("source")
        description = {
            "min_world_size": 1,
            "result_scope": "global",
            "timeout_sec": None,
            "source": source,
            "sources": {} if source is None else {Path(source).name: digest or ""},
            "config": options,
        }
    source = description["source"]
    _static = collect_static(Path(source) if source else None)
    note_tmp()
    found = {"packages": package_list(_static.installed), "surroundings": surroundings(_static, variables)}
    return {**description, **found, "launch_mode": SCRIPT}


def run_script(payload: TrialPayload, send: Send) -> None:
    script = payload["overrides"]
    program = ["--module", script["module"]] if "module" in script else [script["script"]]
    words = [*program, *script["arguments"]]
    send_environment(payload, send)
    run_program(payload, send, words, cwd=script["cwd"], sys_path=sys.path)


def send_environment(payload: TrialPayload, send: Send) -> None:
    send({"type": "env", "env": collect_env(_static, [*payload["watched"], *NAMES]).to_dict()})


class RanksOutput(Protocol):
    """Looks at what the ranks of a program print."""

    def look(self, attempt: int) -> None:
        """The ranks of an attempt are running, or have ended."""

    def result(self, attempt: int, code: int) -> tuple[ResultRecord, Failure | None]:
        """Of the last attempt, once torchrun has ended with this exit code; and what it has failed of if that is 0."""


def run_program(
    payload: TrialPayload,
    send: Send,
    words: Sequence[str],
    output: RanksOutput | None = None,
    *,
    cwd: str | None = None,
    sys_path: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Start ranks that send no events, and report how they ended.

    Args:
        payload: of the trial.
        send: takes the events.
        words: the program of the ranks and its arguments, for torchrun.
        output: what looks at the output of the ranks; ``None`` if torchrun's exit code is the result.
        cwd: where the ranks run; ``None`` for here.
        sys_path: is added to that of Python programs.
        environ: their variables.
    """
    folder, begun, ready = Path(payload["folder"]), -1, None
    started = time.monotonic()
    readiness = Readiness(folder, send)

    def look(attempt: int) -> None:
        nonlocal begun, ready
        readiness.look()
        if not event_log(attempt_folder(folder, attempt), 0).exists():
            return
        if attempt != begun:
            begun, ready = attempt, ready or time.monotonic()
            send({"type": "end", "phase": "setup", "sec": ready - started})
            send({"type": "begin", "phase": "run"})
        if output is not None:
            output.look(attempt)

    options = replace(DEFAULTS, max_restarts=payload["elastic"]["max_restarts"], monitor_interval=_INTERVAL)
    interval = _INTERVAL if output is None else _INTERVAL_OF_COMMAND
    trial = _follow(
        payload, send, "script", options, words, look, interval, cwd=cwd, sys_path=sys_path, environ=environ
    )
    found = judge(trial)
    code = 0 if trial.agent is None else trial.agent.returncode or 0
    if ready is not None and (found.failure is None or found.failure.confidence is not None):
        end: Event = {"type": "end", "phase": "run", "sec": time.monotonic() - ready, "at": time.time()}
        if output is None:
            end["result"] = ResultRecord(code == 0, metrics={"returncode": code})
        else:
            end["result"], end["failure"] = output.result(begun, code)
        send(end)
    _report(folder, trial, send)
    send({"type": "lived", "at": time.time()})


def _follow(
    payload: TrialPayload,
    send: Send,
    launcher: Launcher,
    options: ElasticOptions,
    words: Sequence[str],
    look: Callable[[int], object],
    interval: float = _INTERVAL,
    *,
    cwd: str | None = None,
    sys_path: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> TrialEvidence:
    """Run torchrun to its end, and ``look`` at the attempt that runs; the evidence of the last one."""
    folder, attempt, code = Path(payload["folder"]), 0, None
    order = {"payload": payload, "cwd": cwd or os.getcwd(), "sys_path": sys.path if sys_path is None else sys_path}
    (folder / ORDER).write_text(json.dumps(order))
    # torchrun would give the ranks of all attempts one store, in which those of a restart find the addresses of dead
    # ranks, and mostly connect to these until they give up (pytorch/pytorch#135712).
    apart = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if options.max_restarts else {}
    with _local_rendezvous(options) as meeting:
        command = [
            *(sys.executable, "-m", _PROGRAM, launcher, str(folder / ORDER)),
            *("--nproc-per-node", str(payload["nproc"]), "--log-dir", str(folder / LOGS)),
            *_agent_options(options, payload["trial_id"]),
            *meeting,
            *words,
        ]
        # Not in the folder of the script: there may be files with the names of modules.
        process = subprocess.Popen(command, cwd=folder, env={**apart, **environ})
        while code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(interval)
            look(attempt)
            while attempt < last_attempt(folder):
                look(attempt)  # at what came before its end
                trial = _evidence(payload, launcher, attempt, 0)
                keep_evidence(folder, trial)
                send(attempt_event(trial))
                attempt += 1
                look(attempt)
    trial = _evidence(payload, launcher, attempt, code)
    clear(folder)
    for name in (ORDER, STATES, ERROR):
        (folder / name).unlink(missing_ok=True)
    return trial


def _evidence(payload: TrialPayload, launcher: Launcher, attempt: int, code: int) -> TrialEvidence:
    folder = Path(payload["folder"])
    agent = AgentEnd("torchrun", code)
    move_files(folder)
    with contextlib.suppress(OSError, ValueError):
        agent.error = json.loads((folder / ERROR).read_text())
    return settle(attempt_evidence(folder, attempt, launcher, payload["source"], agent=agent))


def _report(folder: Path, trial: TrialEvidence, send: Send) -> None:
    found = judge(trial)
    if found.failure is not None or found.cleanup is not None:
        keep_evidence(folder, trial)
    send(ranks_event(found))


@contextlib.contextmanager
def _local_rendezvous(options: ElasticOptions) -> Iterator[list[str]]:
    """Options of torchrun for the rendezvous of a single agent, unless ``options`` say where that is.

    torchrun's own store would listen on all interfaces.
    """
    from pytest_aorta.launch.child.rendezvous import close_stores, open_store
    from pytest_aorta.launch.nodes import free_port

    backend = options.rdzv_backend or "c10d"
    if backend == "static" and options.rdzv_endpoint is None:
        yield ["--rdzv-backend", backend, *([] if options.master_port else ["--master-port", str(free_port())])]
    elif options.rdzv_endpoint is not None or backend != "c10d":
        yield _spelled({"rdzv-endpoint": options.rdzv_endpoint, "rdzv-backend": backend})
    else:
        at = f"{LOOPBACK}:{open_store(forks=not reasons_against_forking())}"
        try:
            yield ["--rdzv-backend", backend, "--rdzv-endpoint", at, "--rdzv-conf=is_host=0", "--local-addr", LOOPBACK]
        finally:
            close_stores()


def _agent_options(options: ElasticOptions, trial_id: str) -> list[str]:
    names = ("max_restarts", "monitor_interval", "redirects", "tee", "role", "start_method")
    addresses = ("master_addr", "master_port", "local_addr")
    return _spelled(
        {
            "nnodes": ":".join(map(str, options.nnodes)),
            "rdzv-id": options.rdzv_id or trial_id,
            **{name.replace("_", "-"): getattr(options, name) for name in (*names, *addresses)},
        }
    )


def _spelled(options: Mapping[str, object]) -> list[str]:
    return [text for name, value in options.items() if value is not None for text in (f"--{name}", str(value))]
