"""A rank that an agent has started: it writes an event log, and an error file as torch's ranks do."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.launch.child.attempt_files import EventLogWriter, attempt_folder, event_log, save_collectives
from pytest_aorta.launch.child.name_service import LOOPBACK
from pytest_aorta.launch.child.torch_compat import connect_without_name_server, quiet_stderr, start_worker_server
from pytest_aorta.launch.child.workload_main import load, prepare, run_workload, use_seed
from pytest_aorta.launch.diagnosis.evidence import TrialEvidence
from pytest_aorta.launch.diagnosis.judge import is_about_a_missing_rank
from pytest_aorta.launch.diagnosis.traces import gave_up_waiting, socket_path
from pytest_aorta.runtime.process_tree import request_stacks
from pytest_aorta.runtime.zygote_main import arm
from pytest_aorta.trials.events import EndEvent, Send
from pytest_aorta.trials.lifecycle import failure_of, step_file
from pytest_aorta.trials.seeding import rank_seed

if TYPE_CHECKING:
    from pytest_aorta.launch.launch_mode import TrialPayload


def look_at_ranks(trial: TrialEvidence, running: Mapping[int, int], folder: Path, sockets: Path) -> None:
    """Have them taken where they can say for which rank the others have waited.

    Args:
        trial: what is known so far.
        running: the processes of the ranks that still run, by rank.
        folder: of the attempt.
        sockets: of the flight recorders.
    """
    if running and is_about_a_missing_rank(trial):
        take_stacks(running, folder, sockets)


def take_stacks(running: Mapping[int, int], folder: Path, sockets: Path) -> None:
    """Have the stacks and the flight recorders of processes taken, by rank."""
    for rank, pid in running.items():
        save_collectives(folder, rank, pid, sockets)
    request_stacks(running.values())


def save_own_collectives(error: BaseException, folder: Path, rank: int, sockets: Path) -> None:
    """In a rank whose process group has given up: nothing can be asked of it later."""
    if gave_up_waiting(str(error)):
        save_collectives(folder, rank, os.getpid(), sockets)


def run_rank(payload: TrialPayload, attempt: int, *, prepared: bool = True, relay: Send | None = None) -> bool:
    """Run the trial as the rank that ``RANK`` says; whether setup and run succeeded.

    Args:
        payload: of the trial.
        attempt: number of the attempt.
        prepared: whether this process has imported the workload.
        relay: receives the events of the node's first rank as well.
    """
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
    """Import the workload in this rank, as a phase of it."""
    send({"type": "begin", "phase": "import"})
    end: EndEvent = {"type": "end", "phase": "import", "sec": 0.0}
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
    """To be called before the rank makes a process group. The server logs that it listens."""
    path = socket_path(os.getpid(), sockets)
    with contextlib.suppress(RuntimeError, OSError), quiet_stderr():
        path.unlink(missing_ok=True)  # of an earlier process with this number
        start_worker_server(path)


def _write_error_file(error: BaseException) -> None:
    """At once, as the agent may end this rank; from the file it learns which rank failed first."""
    if isinstance(error, Exception):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)
