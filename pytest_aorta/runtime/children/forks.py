"""Forks that a task makes of its process: one that returns from the task, too, is found out, and ended."""

from __future__ import annotations

import os
import select
import sys
from typing import NoReturn

#: Seconds that a task's end waits for forks that have neither ended, nor executed a program, nor returned. A fork that
#: is meant to live on, as a daemon is, costs its task this once.
PATIENCE = 1.0


class ReturnedTwice(RuntimeError):
    """A fork of a task's process has returned from the task as well."""

    def __init__(self) -> None:
        super().__init__(
            "the task has forked, and its fork has returned from the task as well; end forks with os._exit(0)"
        )


class ForkWatch:
    """Knows of forks by ``os.fork``, which ``multiprocessing`` uses, too; ``subprocess`` makes none.

    All forks of one task share the writing end of a pipe: a fork that returns writes to it, and when all have ended, or
    executed a program, it is closed.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._pipe: tuple[int, int] | None = None
        os.register_at_fork(before=self._before)

    def _before(self) -> None:
        if self._pipe is None and os.getpid() == self._pid:
            self._pipe = os.pipe2(os.O_CLOEXEC)

    def check(self, error: BaseException | None = None) -> None:
        """To be called when a task has returned, or raised ``error``.

        Raises:
            ReturnedTwice: a fork has returned as well. Does not return in the fork.
        """
        if os.getpid() != self._pid:
            self._end_fork(error)
        if self._pipe is None:
            return
        (read, write), self._pipe = self._pipe, None
        try:
            os.close(write)
            poll = select.poll()
            poll.register(read, select.POLLIN)
            if poll.poll(PATIENCE * 1000) and os.read(read, 1):
                raise ReturnedTwice
        except OSError:
            return  # the task has closed all descriptors, and ours with them
        finally:
            _close(read)

    def _end_fork(self, error: BaseException | None) -> NoReturn:
        """A fork that calls ``sys.exit`` is over; any other one would take its parent's tasks."""
        code = 1
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            if isinstance(error, SystemExit):
                code = error.code if isinstance(error.code, int) else int(error.code is not None)
            elif self._pipe is not None:
                os.write(self._pipe[1], b"x")
        finally:
            os._exit(code & 0xFF)


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass
