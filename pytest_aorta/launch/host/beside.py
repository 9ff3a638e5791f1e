"""A program that runs beside a trial, such as one that keeps all cores busy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from pytest_aorta.launch.environment import EnvironmentUnusable
from pytest_aorta.runtime import process_tree

#: Exit status of the guard when the program still ran at the end.
_RAN = 0


class RunningBeside:
    """The program runs between ``__enter__`` and ``__exit__``, below a guard that ends it also when this process dies.

    ``problem``: set at the end, if the program ended before the trial did.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.problem = ""
        self._words = words
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RunningBeside:
        if not self._words:
            return self
        if shutil.which(self._words[0]) is None:
            raise EnvironmentUnusable(f"the program beside the trial, {self._words[0]}, is not on PATH")
        self._guard = subprocess.Popen(
            [sys.executable, "-m", __name__, *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._guard.stdout is not None:
            self._guard.stdout.read()  # until the program is there
            self._guard.stdout.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            if (status := self._guard.wait()) != _RAN:
                self.problem = (
                    f"the program beside the trial, {self._words[0]}, ended before it, with exit code {status}"
                )


def main() -> None:
    """The guard: runs the program until its standard input ends, then kills all that it has started."""
    process_tree.become_subreaper()
    family = process_tree.Family(process_tree.children_of_self)
    program = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(1)
    sys.stdin.buffer.read()
    status = program.poll()

    def reap() -> None:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass

    process_tree.end_all(family.members, reap, grace=0.0)
    os._exit(_RAN if status is None else status & 0xFF or 255)


if __name__ == "__main__":
    main()
