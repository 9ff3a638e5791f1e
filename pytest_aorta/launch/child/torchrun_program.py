"""What runs in torchrun's own process, for the ranks of a workload and for those of a script or command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.child.attempt_files import (
    AttemptRecorder,
    EventLogWriter,
    event_log,
    find_file,
    read_error_file,
)
from pytest_aorta.launch.child.bootstrap import bootstrap_variables
from pytest_aorta.launch.child.rank_main import WorkloadRecorder, run_rank
from pytest_aorta.launch.child.torch_compat import ReportingAgent, use_agent_in_torchrun, use_recorder
from pytest_aorta.launch.child.torchrun import ERROR, STATES
from pytest_aorta.launch.diagnosis.evidence import RankExit
from pytest_aorta.launch.diagnosis.traces import infer_exit_reason
from pytest_aorta.trials.records import Event, GroupState, ResultRecord

if TYPE_CHECKING:
    from pytest_aorta.launch.launch_mode import TrialPayload


class ScriptRecorder(AttemptRecorder):
    """Writes the event logs of the ranks as well, which a script does not."""

    def started(self, pids: Mapping[int, int]) -> None:
        super().started(pids)
        for rank, pid in self.running.items():
            env: Event = {"type": "env", "env": {"process": {"pid": pid}}}
            self._append(rank, env, {"type": "begin", "phase": "run"})

    def ended(self, rank: int, end: RankExit) -> None:
        at = end.at or time.time()
        event: Event = {"type": "end", "phase": "run", "sec": end.sec, "at": at}
        if end.exitcode == 0:
            self._append(rank, {**event, "result": ResultRecord(True)}, {"type": "lived", "at": at})
        elif not end.stopped:
            error_file, stderr = (find_file(self.folder, self.attempt, rank, it) for it in ("error.json", "stderr.log"))
            failure = infer_exit_reason(end.exitcode, read_error_file(error_file), stderr)
            if end.exitcode == -signal.SIGTERM:
                failure = replace(failure, message=f"{failure.message}, which its agent had not sent")
            # A rank writes why it fails before its exit is noticed.
            written = [error_file, stderr if failure.kind == "exception" else None]
            first = min([at, *(path.stat().st_mtime for path in written if path is not None)])
            self._append(rank, {**event, "failure": replace(failure, at=first)})
        super().ended(rank, end)

    def _append(self, rank: int, *events: Event) -> None:
        with contextlib.suppress(OSError):  # a full disk must not disturb the ranks
            log = EventLogWriter(event_log(self.attempt_folder, rank))
            for event in events:
                log.send(event)


class TorchrunAgent(ReportingAgent):
    """torchrun's agent, which writes the states of its worker group into the file ``states``."""

    states: ClassVar[Path]

    def on_state(self, state: GroupState) -> None:
        EventLogWriter(self.states).send({"type": "group", "group": state})


def run_workload(order: Path, arguments: list[str]) -> int:
    """torchrun for the ranks of a workload; the exit status that it would have."""
    payload: TrialPayload = json.loads(order.read_text())["payload"]
    use_recorder(WorkloadRecorder(payload, "torchrun"), max(1.0, payload["grace"]))
    TorchrunAgent.states = order.with_name(STATES)
    use_agent_in_torchrun(TorchrunAgent)
    try:
        return _run(arguments)
    except Exception as error:
        order.with_name(ERROR).write_text(json.dumps(describe_exception(error)))
        raise


def run_script(order: dict[str, Any], arguments: list[str]) -> int:
    """torchrun for the ranks of a script or a command; the exit status that it would have."""
    os.chdir(order["cwd"])
    use_recorder(ScriptRecorder(Path(order["folder"])), order["grace"])
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
