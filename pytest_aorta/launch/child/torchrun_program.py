"""What runs in torchrun's own process, for the ranks of a workload and for those of a script or command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.child.attempt_files import (
    EventLogWriter,
    attempt_evidence,
    attempt_folder,
    event_log,
    find_file,
    left_early,
    read_error_file,
    write_exit,
    write_start,
    write_stop,
)
from pytest_aorta.launch.child.bootstrap import bootstrap_variables
from pytest_aorta.launch.child.rank_main import look_at_ranks, run_rank
from pytest_aorta.launch.child.torch_compat import HookedContext, ReportingAgent, group_event, use_in_torchrun
from pytest_aorta.launch.child.torchrun import ERROR, STATES
from pytest_aorta.launch.diagnosis.evidence import RankExit
from pytest_aorta.launch.diagnosis.traces import infer_exit_reason
from pytest_aorta.trials.events import EndEvent, EnvEvent, TrialEvent

if TYPE_CHECKING:
    from pytest_aorta.launch.launch_mode import TrialPayload


class RecordingContext(HookedContext):
    """Records which ranks of an attempt were started, and how each ended, below the trial's ``folder``."""

    folder: ClassVar[Path]

    def on_start(self, attempt: int) -> None:
        """The ranks of an attempt are about to be started."""
        self.attempt = attempt
        self._recorded: set[int] = set()
        self._started = time.time()
        attempt_folder(self.folder, attempt).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # a full disk must not disturb the ranks
            world_size = int(self.envs[0]["WORLD_SIZE"])
            write_start(self.folder, attempt, {rank: local for local, rank in self.ranks().items()}, world_size)

    def ranks(self) -> dict[int, int]:
        """Local to global ranks."""
        return {local_rank: int(env["RANK"]) for local_rank, env in self.envs.items()}

    def on_look(self, *, stopped: bool) -> None:
        """Record the ranks that have ended since."""
        ranks = self.ranks()
        for local_rank, process in self.processes().items():
            if local_rank not in self._recorded and (code := process.poll()) is not None:
                self._recorded.add(local_rank)
                now = time.time()
                end = RankExit(code, process.pid, now, now - self._started, stopped)
                with contextlib.suppress(OSError):
                    self.record(ranks[local_rank], end)

    def record(self, rank: int, end: RankExit) -> None:
        """A rank has ended."""
        write_exit(self.folder, self.attempt, rank, end)

    def on_stop(self) -> None:
        """Ranks that still run are about to be asked to end."""
        with contextlib.suppress(OSError):
            write_stop(self.folder, self.attempt)

    def running(self) -> dict[int, int]:
        """The processes of the ranks that still run, by rank."""
        ranks = self.ranks()
        return {ranks[local]: process.pid for local, process in self.processes().items() if process.poll() is None}


class WorkloadContext(RecordingContext):
    """Looks into the event logs of the ranks as well."""

    sockets: ClassVar[Path]
    source: ClassVar[str | None]

    @classmethod
    def use(cls, payload: TrialPayload) -> None:
        """Be the context of this trial's ranks."""
        cls.folder, cls.stop_timeout = Path(payload["folder"]), max(1.0, payload["grace"])
        cls.sockets, cls.source = Path(payload["sockets"]), payload["source"]

    def on_stop(self) -> None:
        """Have the stacks of ranks taken that still run, where others have waited for one of them."""
        super().on_stop()
        trial = attempt_evidence(self.folder, self.attempt, "torchrun", self.source)
        look_at_ranks(trial, self.running(), attempt_folder(self.folder, self.attempt), self.sockets)

    def has_left(self, local_rank: int) -> bool:
        """Whether its event log has no end."""
        return left_early(attempt_folder(self.folder, self.attempt), self.ranks()[local_rank])


class ScriptContext(RecordingContext):
    """Writes the event logs of the ranks as well, which a script does not."""

    def on_started(self) -> None:
        ranks = self.ranks()
        with contextlib.suppress(OSError):  # a full disk must not disturb the ranks
            for local_rank, process in self.processes().items():
                env: EnvEvent = {"type": "env", "env": {"process": {"pid": process.pid}}}
                self._append(ranks[local_rank], env, {"type": "begin", "phase": "run"})

    def record(self, rank: int, end: RankExit) -> None:
        at = end.at or time.time()
        event: EndEvent = {"type": "end", "phase": "run", "sec": end.sec, "at": at}
        if end.exitcode == 0:
            self._append(rank, {**event, "result": {"passed": True}}, {"type": "lived", "at": at})
        elif not end.stopped:
            error_file, stderr = (find_file(self.folder, self.attempt, rank, it) for it in ("error.json", "stderr.log"))
            failure = infer_exit_reason(end.exitcode, read_error_file(error_file), stderr)
            if end.exitcode == -signal.SIGTERM:
                failure["message"] += ", which its agent had not sent"
            # A rank writes why it fails before its exit is noticed.
            written = [error_file, stderr if failure["kind"] == "exception" else None]
            failure["at"] = min([at, *(path.stat().st_mtime for path in written if path is not None)])
            self._append(rank, {**event, "failure": failure})
        super().record(rank, end)

    def _append(self, rank: int, *events: TrialEvent) -> None:
        log = EventLogWriter(event_log(attempt_folder(self.folder, self.attempt), rank))
        for event in events:
            log.send(event)


class TorchrunAgent(ReportingAgent):
    """torchrun's agent, which writes the states of its worker group into the file ``states``."""

    states: ClassVar[Path]

    def on_state(self, state: WorkerState) -> None:
        EventLogWriter(self.states).send(group_event(self, state, self.restarts()))


def run_workload(order: Path, arguments: list[str]) -> int:
    """torchrun for the ranks of a workload; the exit status that it would have."""
    WorkloadContext.use(json.loads(order.read_text())["payload"])
    TorchrunAgent.states = order.with_name(STATES)
    use_in_torchrun(WorkloadContext, TorchrunAgent)
    try:
        return _run(arguments)
    except Exception as error:
        order.with_name(ERROR).write_text(json.dumps(describe_exception(error)))
        raise


def run_script(order: dict[str, Any], arguments: list[str]) -> int:
    """torchrun for the ranks of a script or a command; the exit status that it would have."""
    os.chdir(order["cwd"])
    ScriptContext.folder, ScriptContext.stop_timeout = Path(order["folder"]), order["grace"]
    use_in_torchrun(ScriptContext)
    os.environ.update(bootstrap_variables(os.environ, folder=order["folder"], sys_path=order["sys_path"]))
    # Of an outer torchrun, whose rank's failure this one's are not.
    os.environ.pop("TORCHELASTIC_ERROR_FILE", None)
    return _run(arguments)


def _run(arguments: list[str]) -> int:
    from torch.distributed.run import main

    try:
        main(arguments)
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def run_workload_rank(payload: TrialPayload, sys_path: list[str]) -> int:
    """A rank of a workload in an interpreter that torchrun started."""
    sys.path.extend(path for path in sys_path if path not in sys.path)
    return 0 if run_rank(payload, int(os.environ["TORCHELASTIC_RESTART_COUNT"]), prepared=False) else 1


if __name__ == "__main__":
    what, given, *rest = sys.argv[1:]
    if what == "workload":
        sys.exit(run_workload(Path(given), rest))
    if what == "script":
        sys.exit(run_script(json.loads(Path(given).read_text()), rest))
    sys.exit(run_workload_rank(**json.loads(Path(given).read_text())))
