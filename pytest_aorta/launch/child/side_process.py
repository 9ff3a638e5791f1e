"""A process beside the agent of a trial, for what needs a thread, or must answer when the agent does not.

The agent forks ranks, so it must not have threads of libraries itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from pytest_aorta.launch.child.name_service import ask_files_only
from pytest_aorta.runtime import process_tree


class SideProcess:
    """Runs until it is closed or this process ends.

    Args:
        pid: of the process, a child.
        reap: waits for its end.
    """

    def __init__(self, pid: int, reap: Callable[[], object]) -> None:
        self._pid = pid
        self._reap = reap
        _open.append(self)

    def close(self) -> None:
        """End it; twice is harmless."""
        if self not in _open:
            return
        _open.remove(self)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            self._reap()


def fork_side_process(serve: Callable[[], object]) -> SideProcess:
    """Run ``serve`` in a forked process. This one must not have threads that may hold locks."""
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        with _no_return():
            _prepare(agent)
            serve()
    return SideProcess(pid, lambda: os.waitpid(pid, 0))


def start_side_process(script: str, *arguments: object, descriptors: Sequence[int]) -> SideProcess:
    """Run a script in a fresh interpreter, whatever threads this process has.

    Args:
        script: its path. It finds only the standard library, and itself has to end with this process.
        arguments: of the script.
        descriptors: files that it has open under the same numbers.
    """
    words = [sys.executable, "-I", "-S", script, *map(str, arguments)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=descriptors)
    return SideProcess(process.pid, process.wait)


#: Those that this process has started and not closed.
_open: list[SideProcess] = []


def close_side_processes() -> None:
    """End those of this process that still run: what outlives a trial's process counts as left behind by the trial."""
    for process in list(_open):
        process.close()


@contextlib.contextmanager
def _no_return() -> Iterator[None]:
    """End the process with the block, whatever happens in it."""
    try:
        yield
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _prepare(agent: int) -> None:
    process_tree.die_with_parent(agent)
    # The ranks may need it until they have ended, and its stacks say nothing about them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.unregister(process_tree.STACK_SIGNAL)
    ask_files_only()
