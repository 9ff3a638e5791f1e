"""What runs in torchrun's own process: torchrun, with a witness of how its ranks end.

Started with the path of an order (JSON: ``folder``, ``grace``, ``cwd``, ``sys_path``) and torchrun's own arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from torch.distributed.elastic import multiprocessing
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from pytest_aorta.launch.child.rank_files import attempt_folder
from pytest_aorta.launch.child.script_events import tell_end, tell_start
from pytest_aorta.runtime.zygotes.process_tree import STACK_SIGNAL

#: Holds the module that Python imports in every rank.
_BOOTSTRAP = Path(__file__).with_name("bootstrap")


class Witness(SubprocessContext):
    """torch's own context of an attempt's ranks, which tells how every one of them ended.

    It also ends in time the ranks that ignore SIGTERM: torch gives them 30 seconds, whatever it was asked for.
    """

    folder: ClassVar[Path]
    grace: ClassVar[float]

    def _start(self) -> None:
        self._attempt = int(self.envs[0]["TORCHELASTIC_RESTART_COUNT"])
        self._told: set[int] = set()
        attempt_folder(self.folder, self._attempt).mkdir(parents=True, exist_ok=True)
        self._started = time.time()
        super()._start()  # type: ignore[no-untyped-call]
        with contextlib.suppress(OSError):  # a full disk is no reason to disturb the ranks
            for rank, handler in self.subprocess_handlers.items():
                tell_start(self.folder, self._attempt, rank, handler.proc.pid)

    def _poll(self) -> Any:
        self._look(stopped=False)
        return super()._poll()

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        self._look(stopped=False)
        super()._close(death_sig, min(timeout, self.grace))  # type: ignore[arg-type]  # float will do
        self._look(stopped=True)

    def _look(self, *, stopped: bool) -> None:
        for rank, handler in self.subprocess_handlers.items():
            if rank not in self._told and (code := handler.proc.poll()) is not None:
                self._told.add(rank)
                now = time.time()
                end = {"pid": handler.proc.pid, "exitcode": code, "at": now, "sec": now - self._started}
                with contextlib.suppress(OSError):
                    tell_end(self.folder, self._attempt, rank, {**end, "stopped": stopped})


def main(order: dict[str, Any], arguments: list[str]) -> int:
    """Run torchrun; its exit status."""
    os.chdir(order["cwd"])
    Witness.folder, Witness.grace = Path(order["folder"]), order["grace"]
    multiprocessing.SubprocessContext = Witness  # type: ignore[misc]
    before = os.environ.get("PYTHONPATH")
    told = {"folder": order["folder"], "signal": STACK_SIGNAL, "pythonpath": before, "sys_path": order["sys_path"]}
    os.environ["AORTA_BOOTSTRAP"] = json.dumps(told)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_BOOTSTRAP), *([before] if before else [])])
    # That of an outer torchrun, where there is one: what goes wrong here is not its rank's failure.
    os.environ.pop("TORCHELASTIC_ERROR_FILE", None)
    try:
        torchrun(arguments)
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]))
