"""Ranks under the real ``torchrun``, a command whose ranks are fresh interpreters."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pytest_aorta.launch.child.event_log import EventLogRelay, EventLogWriter, event_log, pid_of, read_event_log
from pytest_aorta.launch.child.rank_files import attempt_folder, last_attempt
from pytest_aorta.launch.child.rank_main import run_rank
from pytest_aorta.launch.child.rank_records import RankExit, mark_outlived, records_of_attempt
from pytest_aorta.launch.diagnosis.root_cause import attempt_event, ranks_event
from pytest_aorta.trials.elastic_options import ElasticOptions, elastic_options
from pytest_aorta.trials.events import FailureData, Phase, RankData, Send
from pytest_aorta.trials.outcome import signal_name

if TYPE_CHECKING:
    from pytest_aorta.launch.trial_payload import TrialPayload

_PAYLOAD = "torchrun.json"
_FAILURES = "torchrun_failures.json"
_STATES = "torchrun_states.events"
_LOGS = "torchrun"

#: The failure of a rank whose end torchrun has not seen.
OUTLIVED = "torchrun ended before this rank did"

#: Seconds between two looks at torchrun and its ranks.
POLL_INTERVAL = 0.02


def run_torchrun(payload: TrialPayload, send: Send) -> None:
    """Start ``torchrun``, relay the events of rank 0, report how the ranks ended."""
    folder = Path(payload["folder"])
    (folder / _PAYLOAD).write_text(json.dumps({"payload": payload, "sys_path": sys.path}))
    with local_rendezvous(elastic_options(payload["elastic"])) as meeting:
        _run(payload, send, folder, meeting)


def _run(payload: TrialPayload, send: Send, folder: Path, meeting: list[str]) -> None:
    command = [
        *(sys.executable, "-m", "pytest_aorta.launch.child.torchrun", "torchrun", str(folder / _FAILURES)),
        *("--nproc-per-node", str(payload["nproc"]), *_agent_options(payload), *meeting),
        *("--log-dir", str(folder / _LOGS)),
        *("-m", "pytest_aorta.launch.child.torchrun", "rank", str(folder / _PAYLOAD)),
    ]
    relay, attempt, code = EventLogRelay(send), 0, 0
    for returncode in poll(subprocess.Popen(command)):
        relay.forward(folder / _STATES)
        relay.forward(event_log(attempt_folder(folder, attempt), 0))
        while attempt < last_attempt(folder):
            send(attempt_event(attempt, _records_before_restart(folder, attempt, payload["nproc"])))
            attempt += 1
            relay.forward(event_log(attempt_folder(folder, attempt), 0))
        code = returncode or 0
    try:
        failures = json.loads((folder / _FAILURES).read_text())
    except (OSError, ValueError):
        failures = {}
    exits: dict[int, RankExit] = {int(rank): end for rank, end in failures.items()}
    if exits:
        ranks = set(range(payload["nproc"])) - set(exits)
        exits |= _successful_exits(attempt_folder(folder, attempt), ranks)
    records = records_of_attempt(folder, attempt, payload["nproc"], exits)
    if code < 0:
        mark_outlived(records, OUTLIVED)
    event = ranks_event(records)
    ready = any(record["pid"] is not None for record in records)
    if code < 0 or (event["failure"] is None and event["cleanup"] is None):
        event["failure"] = failure_of_torchrun(code, ready) or event["failure"]
    for name in (_PAYLOAD, _FAILURES, _STATES):
        (folder / name).unlink(missing_ok=True)
    send(event)


@contextlib.contextmanager
def local_rendezvous(options: ElasticOptions) -> Iterator[list[str]]:
    """Options of torchrun for the rendezvous of a single agent, unless ``options`` say where that is.

    torchrun's own store would listen on all interfaces.
    """
    if options.rdzv_backend == "static" and options.rdzv_endpoint is None:
        from pytest_aorta.launch.child.rendezvous import free_port

        port = [] if options.master_port is not None else ["--master-port", str(free_port())]
        yield ["--rdzv-backend", "static", *port]
        return
    if options.rdzv_endpoint is not None or options.rdzv_backend not in (None, "c10d"):
        given = {"rdzv-endpoint": options.rdzv_endpoint, "rdzv-backend": options.rdzv_backend or "c10d"}
        yield [text for name, value in given.items() if value is not None for text in (f"--{name}", value)]
        return
    from pytest_aorta.launch.child.store_process import LOOPBACK, StoreProcess

    store = StoreProcess()
    try:
        at = f"{LOOPBACK}:{store.port}"
        yield ["--rdzv-backend", "c10d", "--rdzv-endpoint", at, "--rdzv-conf", "is_host=0", "--local-addr", LOOPBACK]
    finally:
        store.close()


def poll(process: subprocess.Popen[bytes]) -> Iterator[int | None]:
    """Yields ``None`` as long as a process runs, and then its return code."""
    while True:
        try:
            yield process.wait(POLL_INTERVAL)
            return
        except subprocess.TimeoutExpired:
            yield None


def failure_of_torchrun(code: int, ready: bool) -> FailureData | None:
    """A failure of torchrun itself; unless the ranks were ``ready``, it is one of the setup."""
    phase: Phase = "run" if ready else "setup"
    if code < 0:
        name = signal_name(-code)
        message = f"torchrun was ended by {name}"
        return {"phase": phase, "kind": "signal", "signal": name, "message": message, "rank": None}
    if code > 0:
        message = f"torchrun ended with exit code {code}; see stderr"
        return {"phase": phase, "kind": "exit_code", "exit_code": code, "message": message, "rank": None}
    return None


def _agent_options(payload: TrialPayload) -> list[str]:
    options = elastic_options(payload["elastic"])
    given = {
        "nnodes": ":".join(map(str, options.nnodes)),
        "rdzv-id": options.rdzv_id or payload["trial_id"],
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
    return [text for name, value in given.items() if value is not None for text in (f"--{name}", str(value))]


def _records_before_restart(folder: Path, attempt: int, nproc: int) -> list[RankData]:
    """torchrun does not report how an attempt ended that is not the last; event logs and error files do."""
    logs = {rank: read_event_log(attempt_folder(folder, attempt), rank) for rank in range(nproc)}
    failed = [rank for rank, seen in logs.items() if not {"setup", "run"}.isdisjoint(seen.failures)]
    return records_of_attempt(folder, attempt, nproc, {rank: {"exitcode": 1} for rank in failed})


def _successful_exits(folder: Path, ranks: set[int]) -> dict[int, RankExit]:
    """Of ``ranks`` that torchrun does not count as failed, those that are gone: they ended with exit code 0."""
    pids = {rank: pid_of(read_event_log(folder, rank)) for rank in ranks}
    return {rank: {"pid": pid, "exitcode": 0} for rank, pid in pids.items() if pid and not psutil.pid_exists(pid)}


def torchrun_main(failures: Path, arguments: list[str]) -> int:
    """torchrun's entry point, with its failures kept as data; the exit status that torchrun would have."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    from pytest_aorta.launch.child.torch_agent import reporting_agent
    from pytest_aorta.launch.child.torch_compat.elastic_agent import use_agent_in_torchrun

    use_agent_in_torchrun(reporting_agent(EventLogWriter(failures.with_name(_STATES)).send))
    try:
        main(arguments)
    except ChildFailedError as error:
        exits = {rank: {"pid": f.pid, "exitcode": f.exitcode, "at": f.timestamp} for rank, f in error.failures.items()}
        failures.write_text(json.dumps(exits))
        print(error, file=sys.stderr)
        return 1
    return 0


def torchrun_rank_main(payload: TrialPayload, sys_path: list[str]) -> int:
    """A rank in an interpreter that torchrun started."""
    sys.path.extend(path for path in sys_path if path not in sys.path)
    return 0 if run_rank(payload, int(os.environ["TORCHELASTIC_RESTART_COUNT"]), prepared=False) else 1


if __name__ == "__main__":
    if sys.argv[1] == "torchrun":
        sys.exit(torchrun_main(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(torchrun_rank_main(**json.loads(Path(sys.argv[2]).read_text())))
