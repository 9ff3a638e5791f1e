"""torchrun for a user's script, with a record of how its ranks end.

Started with the path of an order (JSON: ``folder``, ``grace``, ``cwd``, ``sys_path``) and torchrun's arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from pytest_aorta.launch.child.rank_files import attempt_folder
from pytest_aorta.launch.child.rank_records import RankExit
from pytest_aorta.launch.child.script_events import record_exit, record_start
from pytest_aorta.launch.child.torch_compat.rank_context import HookedContext, use_context_in_torchrun
from pytest_aorta.runtime.zygotes.process_tree import STACK_SIGNAL

#: Holds the module that Python imports in every rank.
_BOOTSTRAP = Path(__file__).with_name("bootstrap")


class RecordingContext(HookedContext):
    """Records when every rank of an attempt was started, and how it ended, below the trial's ``folder``."""

    folder: ClassVar[Path]

    def on_start(self, attempt: int) -> None:
        """Make the folder of the attempt."""
        self._attempt = attempt
        self._recorded: set[int] = set()
        attempt_folder(self.folder, attempt).mkdir(parents=True, exist_ok=True)
        self._started = time.time()

    def on_started(self) -> None:
        """Record the start of every rank."""
        with contextlib.suppress(OSError):  # a full disk must not disturb the ranks
            for rank, process in self.processes().items():
                record_start(self.folder, self._attempt, rank, process.pid)

    def on_look(self, *, stopped: bool) -> None:
        """Record the ranks that have ended since."""
        for rank, process in self.processes().items():
            if rank not in self._recorded and (code := process.poll()) is not None:
                self._recorded.add(rank)
                now = time.time()
                end: RankExit = {
                    "pid": process.pid,
                    "exitcode": code,
                    "at": now,
                    "sec": now - self._started,
                    "stopped": stopped,
                }
                with contextlib.suppress(OSError):
                    record_exit(self.folder, self._attempt, rank, end)


def main(order: dict[str, Any], arguments: list[str]) -> int:
    """Run torchrun; its exit status."""
    os.chdir(order["cwd"])
    RecordingContext.folder, RecordingContext.stop_timeout = Path(order["folder"]), order["grace"]
    use_context_in_torchrun(RecordingContext)
    before = os.environ.get("PYTHONPATH")
    bootstrap = {"folder": order["folder"], "signal": STACK_SIGNAL, "pythonpath": before, "sys_path": order["sys_path"]}
    os.environ["AORTA_BOOTSTRAP"] = json.dumps(bootstrap)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_BOOTSTRAP), *([before] if before else [])])
    # Of an outer torchrun, whose rank's failure this one's are not.
    os.environ.pop("TORCHELASTIC_ERROR_FILE", None)
    try:
        torchrun(arguments)
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]))
