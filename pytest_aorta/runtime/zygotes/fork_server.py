"""What all processes have in common that fork children for a parent: the loop, the signals, the fork, the end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from pytest_aorta.common.import_target import import_target
from pytest_aorta.runtime.zygotes import process_tree
from pytest_aorta.runtime.zygotes.channel import Channel
from pytest_aorta.runtime.zygotes.task_messages import PrepareOrder


class ForkServer(ABC):
    """Carries out the orders of the parent, in a process without threads.

    Args:
        control: from and to the parent.
        prepared: what the zygote was prepared with.
        run: the function of the tasks; ``None`` where each child prepares itself.
        parent: the process that has to put away what it leaves; ``None`` where that is not known.
        owner: a descriptor of the process whose end is also this one's; a branch ends with its zygote instead.
    """

    def __init__(
        self,
        control: Channel,
        prepared: PrepareOrder,
        run: Callable[..., Any] | None,
        *,
        parent: int | None = None,
        owner: int | None = None,
    ) -> None:
        self.control = control
        self.parent = parent
        self.owner = owner
        self.prepared = prepared
        self.run = run
        self.wake_read, self.wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.handlers = process_tree.disregard(process_tree.TERMINATIONS)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def begin(self) -> None:  # noqa: B027  (nothing, unless there is something)
        """What is done before the first order."""

    @abstractmethod
    def step(self) -> bool:
        """Wait for something to happen and handle it; whether the channel is still open."""

    @abstractmethod
    def reap(self) -> None:
        """Collect every child that has ended."""

    def serve(self) -> None:
        """Handle orders and deaths of children until the channel closes; then end all of them. Never returns."""
        code = 1
        try:
            self.begin()
            while self.step():
                pass
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            code = 0  # the parent has gone while a report was sent
        except BaseException:
            traceback.print_exc()
        finally:
            process_tree.end_all(lambda: process_tree.tree(process_tree.children_of_self()), self.reap, grace=0)
            self.put_away()
            sys.stderr.flush()
            os._exit(code)

    def put_away(self) -> None:
        """Where the parent was killed, do what it can do no more."""
        target = self.prepared["orphaned"]
        if target is not None and self.parent is not None and os.getppid() != self.parent:
            with contextlib.suppress(Exception):
                import_target(target)()

    def owners(self) -> list[int]:
        """The descriptor to watch for the end of the owner, where there is one."""
        return [] if self.owner is None else [self.owner]

    def drain_wakeups(self) -> None:
        """Empty the pipe that SIGCHLD writes to."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake_read, 512):
                pass

    def fork(self) -> int:
        """``os.fork`` of a process whose output is flushed, so that the child does not write it once more."""
        sys.stdout.flush()
        sys.stderr.flush()
        return os.fork()

    def leave_behind(self) -> None:
        """In a fork: give up what is the parent's own."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        os.close(self.wake_read)
        os.close(self.wake_write)
        self.control.close()
        for owner in self.owners():
            os.close(owner)
