"""A rank that an agent has started: it writes an event log, and an error file as torch's ranks do."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.launch.child.attempt_files import (
    AttemptRecorder,
    EventLogWriter,
    attempt_evidence,
    attempt_folder,
    event_log,
    left_early,
    save_collectives,
)
from pytest_aorta.launch.child.torch_compat import connect_without_name_server, quiet_stderr, start_worker_server
from pytest_aorta.launch.child.workload_main import load, prepare, run_workload, use_seed
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, Launcher, TrialEvidence
from pytest_aorta.launch.diagnosis.judge import is_about_a_missing_rank
from pytest_aorta.launch.diagnosis.traces import gave_up_waiting, socket_path
from pytest_aorta.launch.nodes import LOOPBACK
from pytest_aorta.runtime.process_tree import request_stacks
from pytest_aorta.runtime.zygote_main import arm
from pytest_aorta.trials.lifecycle import failure_of, step_file
from pytest_aorta.trials.records import Event, Send
from pytest_aorta.trials.seeding import rank_seed

if TYPE_CHECKING:
    from pytest_aorta.launch.launch_mode import TrialPayload


class WorkloadRecorder(AttemptRecorder):
    """Looks into the event logs of the ranks of a workload as well."""

    def __init__(self, payload: TrialPayload, launcher: Launcher) -> None:
        super().__init__(Path(payload["folder"]))
        self._launcher: Launcher = launcher
        self._source = payload["source"]
        self._sockets = Path(payload["sockets"])

    def evidence(self, agent: AgentEnd | None = None) -> TrialEvidence:
        return attempt_evidence(self.folder, max(0, self.attempt), self._launcher, self._source, agent=agent)

    def stop(self) -> None:
        """Have stacks and flight recorders taken where they can say for which rank the others have waited."""
        super().stop()
        if is_about_a_missing_rank(self.evidence()):
            take_stacks(self.running, self.attempt_folder, self._sockets)

    def has_left(self, local_rank: int) -> bool:
        return left_early(self.attempt_folder, self.ranks[local_rank])


def take_stacks(running: Mapping[int, int], folder: Path, sockets: Path) -> None:
    """Have the stacks and the flight recorders of processes taken, by rank."""
    for rank, pid in running.items():
        save_collectives(folder, rank, pid, sockets)
    request_stacks(running.values())


def save_own_collectives(error: BaseException, folder: Path, rank: int, sockets: Path) -> None:
    if gave_up_waiting(str(error)):
        save_collectives(folder, rank, os.getpid(), sockets)


def run_rank(payload: TrialPayload, attempt: int, *, prepared: bool = True, relay: Send | None = None) -> bool:
    """Run the trial as the rank that ``RANK`` says; whether setup and run succeeded."""
    folder, rank = attempt_folder(Path(payload["folder"]), attempt), int(os.environ["RANK"])
    folder.mkdir(parents=True, exist_ok=True)
    arm(str(folder / f"rank_{rank}.stacks.log"))
    seed = rank_seed(payload["seed"], rank, attempt)
    log = EventLogWriter(event_log(folder, rank), relay=relay if os.environ["LOCAL_RANK"] == "0" else None)
    if not prepared:
        _import(payload, seed, log.send)
    use_seed(seed)
    sockets = Path(payload["sockets"])
    _serve_flight_recorder(sockets)
    connect_without_name_server(LOOPBACK)

    def on_error(error: BaseException) -> None:
        _write_error_file(error)
        save_own_collectives(error, folder, rank, sockets)

    return run_workload(payload, log.send, step_file(folder, rank), on_error=on_error)


def _import(payload: TrialPayload, seed: int, send: Send) -> None:
    send({"type": "begin", "phase": "import"})
    end: Event = {"type": "end", "phase": "import", "sec": 0.0}
    start = time.monotonic()
    try:
        load(payload, seed)
    except BaseException as error:
        end["failure"] = failure_of(error, "import")
        _write_error_file(error)
        raise
    finally:
        end["sec"] = time.monotonic() - start
        send(end)
    prepare(payload)


def _serve_flight_recorder(sockets: Path) -> None:
    # Before the rank makes a process group.
    path = socket_path(os.getpid(), sockets)
    with contextlib.suppress(RuntimeError, OSError), quiet_stderr():
        path.unlink(missing_ok=True)  # of an earlier process with this number
        start_worker_server(path)


def _write_error_file(error: BaseException) -> None:
    # At once, as the agent may end this rank; from the file it learns which rank failed first.
    if isinstance(error, Exception):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)
