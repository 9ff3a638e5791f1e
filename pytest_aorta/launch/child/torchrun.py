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

from pytest_aorta.common.exception_text import describe_exception
from pytest_aorta.launch.child.event_log import EventLogRelay, EventLogWriter, event_log
from pytest_aorta.launch.child.rank_evidence import attempt_evidence, keep_evidence
from pytest_aorta.launch.child.rank_files import attempt_folder, last_attempt
from pytest_aorta.launch.child.rank_main import run_rank
from pytest_aorta.launch.diagnosis.judge import attempt_event, judge, ranks_event
from pytest_aorta.launch.diagnosis.trial_evidence import AgentEnd, TrialEvidence
from pytest_aorta.runtime.process_tree import reasons_against_forking
from pytest_aorta.trials.elastic_options import ElasticOptions, elastic_options
from pytest_aorta.trials.events import Send

if TYPE_CHECKING:
    from pytest_aorta.launch.trial_payload import TrialPayload

_PAYLOAD = "torchrun.json"
_STATES = "torchrun_states.events"
_ERROR = "torchrun_error.json"
_LOGS = "torchrun"

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
        *(sys.executable, "-m", "pytest_aorta.launch.child.torchrun", "torchrun", str(folder / _PAYLOAD)),
        *("--nproc-per-node", str(payload["nproc"]), *_agent_options(payload), *meeting),
        *("--log-dir", str(folder / _LOGS)),
        *("-m", "pytest_aorta.launch.child.torchrun", "rank", str(folder / _PAYLOAD)),
    ]
    relay, attempt, code = EventLogRelay(send), 0, 0
    variables = with_stores_apart(elastic_options(payload["elastic"]).max_restarts)
    for returncode in poll(subprocess.Popen(command, env=variables)):
        relay.forward(folder / _STATES)
        relay.forward(event_log(attempt_folder(folder, attempt), 0))
        while attempt < last_attempt(folder):
            trial = _evidence(payload, attempt)
            keep_evidence(folder, trial)
            send(attempt_event(trial))
            attempt += 1
            relay.forward(event_log(attempt_folder(folder, attempt), 0))
        code = returncode or 0
    relay.forward(folder / _STATES)
    trial = _evidence(payload, attempt, code)
    found = judge(trial)
    if found.failure is not None or found.cleanup is not None:
        keep_evidence(folder, trial)
    for name in (_PAYLOAD, _STATES, _ERROR):
        (folder / name).unlink(missing_ok=True)
    send(ranks_event(found))


def _evidence(payload: TrialPayload, attempt: int, code: int = 0) -> TrialEvidence:
    agent: AgentEnd = {"name": "torchrun", "returncode": code}
    with contextlib.suppress(OSError, ValueError):
        agent["error"] = json.loads((Path(payload["folder"]) / _ERROR).read_text())
    return attempt_evidence(Path(payload["folder"]), attempt, "torchrun", payload["source"], agent=agent)


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
    from pytest_aorta.launch.child.name_service import LOOPBACK
    from pytest_aorta.launch.child.rendezvous import LocalStore

    store = LocalStore(forks=not reasons_against_forking())
    try:
        at = f"{LOOPBACK}:{store.port}"
        yield ["--rdzv-backend", "c10d", "--rdzv-endpoint", at, "--rdzv-conf", "is_host=0", "--local-addr", LOOPBACK]
    finally:
        store.close()


def with_stores_apart(max_restarts: int) -> dict[str, str]:
    """The variables for a torchrun whose ranks have a store of their own in every attempt.

    Otherwise the agent gives those of all attempts the same one, in which the ranks of a restart find the addresses of
    dead ranks, and mostly connect to these until they give up (pytorch/pytorch#135712).
    """
    return {**({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if max_restarts else {}), **os.environ}


def poll(process: subprocess.Popen[bytes], interval: float = POLL_INTERVAL) -> Iterator[int | None]:
    """Yields ``None`` as long as a process runs, and then its return code; ``interval`` in seconds."""
    while True:
        try:
            yield process.wait(interval)
            return
        except subprocess.TimeoutExpired:
            yield None


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


def torchrun_main(order: Path, arguments: list[str]) -> int:
    """torchrun's entry point, which records how its ranks end; the exit status that torchrun would have."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    from pytest_aorta.launch.child.torch_agent import reporting_agent
    from pytest_aorta.launch.child.torch_compat.elastic_agent import use_agent_in_torchrun
    from pytest_aorta.launch.child.torch_compat.rank_context import use_context_in_torchrun
    from pytest_aorta.launch.child.workload_context import WorkloadContext

    WorkloadContext.use(json.loads(order.read_text())["payload"])
    use_context_in_torchrun(WorkloadContext)
    use_agent_in_torchrun(reporting_agent(EventLogWriter(order.with_name(_STATES)).send))
    try:
        main(arguments)
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:
        order.with_name(_ERROR).write_text(json.dumps(describe_exception(error)))
        raise
    return 0


def torchrun_rank_main(payload: TrialPayload, sys_path: list[str]) -> int:
    """A rank in an interpreter that torchrun started."""
    sys.path.extend(path for path in sys_path if path not in sys.path)
    return 0 if run_rank(payload, int(os.environ["TORCHELASTIC_RESTART_COUNT"]), prepared=False) else 1


if __name__ == "__main__":
    if sys.argv[1] == "torchrun":
        sys.exit(torchrun_main(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(torchrun_rank_main(**json.loads(Path(sys.argv[2]).read_text())))
