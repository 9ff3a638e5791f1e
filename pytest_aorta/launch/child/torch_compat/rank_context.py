"""torchrun's context of the ranks of one attempt, with hooks."""

from __future__ import annotations

import signal
from subprocess import Popen
from typing import Any, ClassVar

from torch.distributed.elastic import multiprocessing
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


class HookedContext(SubprocessContext):
    """The ranks of an attempt under torchrun, with hooks; none has more than ``stop_timeout`` s after SIGTERM."""

    stop_timeout: ClassVar[float]

    def on_start(self, attempt: int) -> None:
        """The ranks are about to be started."""

    def on_started(self) -> None:
        """They have been started."""

    def on_look(self, *, stopped: bool) -> None:
        """torchrun looks at its ranks; ``stopped``: it has asked those that still ran to end."""

    def on_stop(self) -> None:
        """torchrun is about to ask the ranks that still run to end."""

    def has_left(self, local_rank: int) -> bool:
        """Whether a rank that has ended with exit code 0 was not done, so that the attempt has failed."""
        return False

    def processes(self) -> dict[int, Popen[bytes]]:
        """By local rank."""
        return {rank: handler.proc for rank, handler in self.subprocess_handlers.items()}

    def _start(self) -> None:
        self.on_start(int(self.envs[0]["TORCHELASTIC_RESTART_COUNT"]))
        super()._start()  # type: ignore[no-untyped-call]
        self.on_started()

    def _poll(self) -> Any:
        self.on_look(stopped=False)
        for local_rank, process in self.processes().items():
            if process.poll() == 0 and local_rank in self._running_local_ranks and self.has_left(local_rank):
                self._failures[local_rank] = ProcessFailure(local_rank, process.pid, 0, self.error_files[local_rank])
        return super()._poll()

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        self.on_look(stopped=False)
        if any(process.poll() is None for process in self.processes().values()):
            self.on_stop()
            self.on_look(stopped=False)
        super()._close(death_sig, min(timeout, self.stop_timeout))  # type: ignore[arg-type]  # float will do
        self.on_look(stopped=True)


def use_context_in_torchrun(context: type[SubprocessContext]) -> None:
    """Have torchrun, when it runs in this process, start ranks in this context instead of its own."""
    multiprocessing.SubprocessContext = context  # type: ignore[misc]
