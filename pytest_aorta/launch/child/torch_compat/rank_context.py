"""torchrun's context of the ranks of one attempt, with hooks."""

from __future__ import annotations

import signal
from subprocess import Popen
from typing import Any, ClassVar

from torch.distributed.elastic import multiprocessing
from torch.distributed.elastic.multiprocessing.api import SubprocessContext


class HookedContext(SubprocessContext):
    """The ranks of an attempt under torchrun, with hooks; none has more than ``stop_timeout`` s after SIGTERM."""

    stop_timeout: ClassVar[float]

    def on_start(self, attempt: int) -> None:
        """The ranks are about to be started."""

    def on_started(self) -> None:
        """They have been started."""

    def on_look(self, *, stopped: bool) -> None:
        """torchrun looks at its ranks; ``stopped``: it has asked those that still ran to end."""

    def processes(self) -> dict[int, Popen[bytes]]:
        """By local rank."""
        return {rank: handler.proc for rank, handler in self.subprocess_handlers.items()}

    def _start(self) -> None:
        self.on_start(int(self.envs[0]["TORCHELASTIC_RESTART_COUNT"]))
        super()._start()  # type: ignore[no-untyped-call]
        self.on_started()

    def _poll(self) -> Any:
        self.on_look(stopped=False)
        return super()._poll()

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        self.on_look(stopped=False)
        super()._close(death_sig, min(timeout, self.stop_timeout))  # type: ignore[arg-type]  # float will do
        self.on_look(stopped=True)


def use_context_in_torchrun(context: type[SubprocessContext]) -> None:
    """Have torchrun, when it runs in this process, start ranks in this context instead of its own."""
    multiprocessing.SubprocessContext = context  # type: ignore[misc]
