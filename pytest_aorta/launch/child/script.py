"""A trial whose ranks are a user's script, or module, under the real ``torchrun``."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.launch.child.event_log import event_log
from pytest_aorta.launch.child.rank_evidence import attempt_evidence, keep_evidence
from pytest_aorta.launch.child.rank_files import attempt_folder, last_attempt
from pytest_aorta.launch.child.torchrun import POLL_INTERVAL, local_rendezvous, poll, with_stores_apart
from pytest_aorta.launch.diagnosis.judge import attempt_event, judge, ranks_event
from pytest_aorta.launch.diagnosis.trial_evidence import AgentEnd, TrialEvidence
from pytest_aorta.launch.launch_mode import SCRIPT
from pytest_aorta.launch.trial_payload import PrepareArgument, TrialPayload
from pytest_aorta.probe.collect import StaticEnv, collect_env, collect_static, surroundings, variables_now
from pytest_aorta.trials.elastic_options import DEFAULTS
from pytest_aorta.trials.events import EndEvent, FailureData, ResultData, Send
from pytest_aorta.trials.place_variables import NAMES, note_tmp

_ORDER = "torchrun.json"
_LOGS = "torchrun"

_static: StaticEnv | None = None


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
    """Start ``torchrun``, wait for it, report how the ranks ended."""
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
    """What torchrun starts.

    Attributes:
        cwd: working directory of the ranks.
        max_restarts: times that all of them are started again.
        words: options of torchrun, the program of the ranks, and its arguments.
        sys_path: what is added to ``sys.path`` of a Python program.
        environ: variables.
    """

    cwd: str
    max_restarts: int
    words: Sequence[str]
    sys_path: Sequence[str]
    environ: Mapping[str, str]


class RanksOutput:
    """Looks at what the ranks print while they run; this one does not.

    Attributes:
        interval: seconds between two looks.
    """

    interval: ClassVar[float] = POLL_INTERVAL

    def look(self, attempt: int) -> None:
        """The ranks of an attempt are running, or have ended."""

    def result(self, attempt: int, code: int) -> tuple[ResultData, FailureData | None]:
        """Of the last attempt, when torchrun has ended with this exit code, and what it has failed of, if it is 0."""
        return {"passed": code == 0, "metrics": {"returncode": code}}, None


def follow_torchrun(payload: TrialPayload, send: Send, start: TorchrunStart, output: RanksOutput) -> None:
    """Start ``torchrun``, wait for it, report how the ranks ended."""
    folder = Path(payload["folder"])
    started = time.monotonic()
    send({"type": "begin", "phase": "setup"})
    attempt, code, ready = 0, 0, None
    with local_rendezvous(DEFAULTS) as meeting:
        for returncode in poll(_start(payload, folder, meeting, start), output.interval):
            if ready is None and event_log(attempt_folder(folder, 0), 0).exists():
                ready = time.monotonic()
                _send_ready(ready - started, send)
            while ready is not None and attempt < last_attempt(folder):
                send(attempt_event(_evidence(payload, attempt)))
                _send_ready(ready - started, send)
                attempt += 1
            if ready is not None:
                output.look(attempt)
            code = returncode or 0
    trial = _evidence(payload, attempt, code)
    found = judge(trial)
    if found.failure is not None:
        keep_evidence(folder, trial)
    event = ranks_event(found)
    if ready is not None and (event["failure"] is None or event["failure"].get("rank") is not None):
        result, failure = output.result(attempt, code)
        end: EndEvent = {"type": "end", "phase": "run", "sec": time.monotonic() - ready, "at": time.time()}
        end["result"] = result
        if failure is not None:
            end["failure"] = failure
        send(end)
    (folder / _ORDER).unlink(missing_ok=True)
    send(event)
    send({"type": "lived", "at": time.time()})


def _start(payload: TrialPayload, folder: Path, meeting: list[str], start: TorchrunStart) -> subprocess.Popen[bytes]:
    order = {
        "folder": str(folder),
        "grace": payload["grace"],
        "cwd": start.cwd,
        "sys_path": list(start.sys_path),
    }
    (folder / _ORDER).write_text(json.dumps(order))
    command = [
        *(sys.executable, "-m", "pytest_aorta.launch.child.torchrun_wrapper", str(folder / _ORDER)),
        *("--nproc-per-node", str(payload["nproc"]), "--max-restarts", str(start.max_restarts)),
        *(*meeting, "--rdzv-id", payload["trial_id"]),
        *("--log-dir", str(folder / _LOGS), "--redirects", "3", "--monitor-interval", str(POLL_INTERVAL)),
        *start.words,
    ]
    # Not in the folder of the script: there may be files with the names of modules.
    environ = {**with_stores_apart(start.max_restarts), **start.environ}
    return subprocess.Popen(command, cwd=folder, env=environ)


def _send_ready(sec: float, send: Send) -> None:
    send({"type": "end", "phase": "setup", "sec": sec})
    send({"type": "begin", "phase": "run"})


def _evidence(payload: TrialPayload, attempt: int, code: int = 0) -> TrialEvidence:
    agent: AgentEnd = {"name": "torchrun", "returncode": code}
    return attempt_evidence(Path(payload["folder"]), attempt, "script", payload["source"], agent=agent)
