"""What runs in torchrun's own process, and in the ranks of a workload that it starts."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.child.attempt_files import (
    AttemptRecorder,
    EventLogWriter,
    attempt_evidence,
    event_log,
    find_file,
)
from pytest_aorta.launch.child.bootstrap import bootstrap_variables
from pytest_aorta.launch.child.elastic import WorkloadRecorder, run_rank
from pytest_aorta.launch.child.process_files import (
    Process,
    begin_events,
    end_events,
    read_processes,
    save_process_collectives,
)
from pytest_aorta.launch.child.torch_compat import use_agent_in_torchrun, use_recorder
from pytest_aorta.launch.child.torchrun import ERROR, STATES
from pytest_aorta.launch.diagnosis.evidence import RankExit
from pytest_aorta.launch.diagnosis.judge import is_about_a_missing_rank
from pytest_aorta.runtime.process_tree import request_stacks
from pytest_aorta.trials.records import Event, GroupState

if TYPE_CHECKING:
    from pytest_aorta.launch.launch_mode import TrialPayload


class ScriptRecorder(AttemptRecorder):
    """Writes the event logs of the ranks as well, which a script does not."""

    def __init__(self, folder: Path, sockets: Path) -> None:
        super().__init__(folder)
        self._sockets = sockets

    def started(self, pids: Mapping[int, int]) -> None:
        super().started(pids)
        for rank, pid in self.running.items():
            self._append(rank, begin_events(pid))

    def ended(self, rank: int, end: RankExit) -> None:
        told = (process for process in read_processes(self.folder) if process.pid == end.pid)
        unarmed = Process("", end.pid or 0, 0, "", (end.at or 0.0) - end.sec, lived=None if end.exitcode else end.at)
        process = replace(next(told, unarmed), end=end)
        left = (find_file(self.folder, self.attempt, rank, name) for name in ("error.json", "stderr.log"))
        self._append(rank, end_events(process, *left))
        super().ended(rank, end)

    def stop(self) -> None:
        """Have stacks and flight recorders taken where they can say for which rank the others have waited."""
        super().stop()
        if is_about_a_missing_rank(attempt_evidence(self.folder, self.attempt, "script", None)):
            save_process_collectives(self.folder, self._sockets)
            request_stacks(self.running.values())

    def _append(self, rank: int, events: list[Event]) -> None:
        own = event_log(self.attempt_folder, rank)
        with contextlib.suppress(OSError), contextlib.closing(EventLogWriter(own)) as log:  # the disk may be full
            for event in events:
                log.send(event)


class StatesRecorder(WorkloadRecorder):
    """Writes the states of the worker group into a file."""

    def on_state(self, state: GroupState) -> None:
        with contextlib.closing(EventLogWriter(self.folder / STATES)) as log:
            log.send({"type": "group", "group": state})


def main(launcher: str, path: Path, arguments: list[str]) -> int:
    """Run torchrun, or one rank of a workload; the exit status that it would have."""
    order: dict[str, Any] = json.loads(path.read_text())
    payload: TrialPayload = order["payload"]
    if launcher == "rank":
        sys.path.extend(each for each in order["sys_path"] if each not in sys.path)
        return 0 if run_rank(payload, int(os.environ["TORCHELASTIC_RESTART_COUNT"]), prepared=False) else 1
    os.chdir(order["cwd"])
    if launcher == "script":
        folder, sockets = payload["folder"], payload["sockets"]
        use_recorder(ScriptRecorder(Path(folder), Path(sockets)), payload["grace"])
        os.environ.update(bootstrap_variables(os.environ, folder=folder, sockets=sockets, sys_path=order["sys_path"]))
        # Of an outer torchrun, whose rank's failure this one's are not.
        os.environ.pop("TORCHELASTIC_ERROR_FILE", None)
    else:
        use_recorder(StatesRecorder(payload, "torchrun"), max(1.0, payload["grace"]))
        use_agent_in_torchrun()
    from torch.distributed.run import main as torchrun

    try:
        torchrun(arguments)
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:
        path.with_name(ERROR).write_text(json.dumps(describe_exception(error)))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
