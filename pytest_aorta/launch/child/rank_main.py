"""A rank that an agent has started: it writes an event log, and an error file as torch's ranks do."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.launch.child.attempt_files import (
    AttemptRecorder,
    EventLogWriter,
    attempt_evidence,
    attempt_folder,
    event_log,
    read_rank,
    recorder_socket,
    save_collectives,
)
from pytest_aorta.launch.child.torch_compat import quiet_stderr, start_worker_server
from pytest_aorta.launch.child.workload_main import load, prepare, run_workload, use_seed
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, Launcher, RankEvidence, TrialEvidence
from pytest_aorta.launch.diagnosis.judge import is_about_a_missing_rank
from pytest_aorta.launch.diagnosis.traces import gave_up_waiting
from pytest_aorta.runtime.process_tree import request_stacks
from pytest_aorta.runtime.zygote_main import arm
from pytest_aorta.trials.lifecycle import failure_of
from pytest_aorta.trials.records import Event, Send
from pytest_aorta.trials.seeding import rank_seed
from pytest_aorta.trials.steps import step_file

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
            self.take_stacks()

    def take_stacks(self) -> None:
        """Of the ranks that run, and what their flight recorders have."""
        for rank in self.running:
            save_collectives(self.attempt_folder, rank, self._sockets)
        request_stacks(self.running.values())

    def has_left(self, local_rank: int) -> bool:
        seen = read_rank(RankEvidence(self.ranks[local_rank]), self.attempt_folder).seen()
        return not (seen.finished or seen.result is not None or seen.failures)


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
    with contextlib.suppress(RuntimeError, OSError), quiet_stderr():
        start_worker_server(recorder_socket(folder, rank, sockets))  # before the rank makes a process group

    def on_error(error: BaseException) -> None:
        _write_error_file(error)
        if gave_up_waiting(str(error)):
            save_collectives(folder, rank, sockets)

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


def _write_error_file(error: BaseException) -> None:
    # At once, as the agent may end this rank; from the file it learns which rank failed first.
    if isinstance(error, Exception):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)
