"""The shell that runs the commands of recipes on this host."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from pytest_aorta.common.interrupts import PIECE
from pytest_aorta.runtime import process_tree


class Shell:
    """Runs commands, one at a time; kills the running one when this process is killed.

    A second shell, one for all commands, reads their process groups from a pipe and kills the last one at its end. For
    the kernel to do it (PR_SET_PDEATHSIG), a program would have to be started in front of each command, or pytest be
    forked.

    Args:
        grace: seconds between SIGTERM and SIGKILL.
    """

    _GUARD = 'while read -r group; do last=$group; done; [ -z "$last" ] || kill -KILL -- "-$last"'

    def __init__(self, grace: float) -> None:
        self._grace = grace
        read, self._write = os.pipe()
        self._guard = subprocess.Popen(
            ["/bin/bash", "-c", self._GUARD], stdin=read, stdout=subprocess.DEVNULL, start_new_session=True
        )
        os.close(read)

    def close(self) -> None:
        os.close(self._write)
        self._guard.kill()  # no command runs; a fork of pytest may hold the pipe open
        self._guard.wait()

    def run(self, script: str, folder: Path, variables: Mapping[str, str], output: IO[bytes] | None) -> int:
        """Run a script by ``/bin/bash -c``; return its exit status, negative for a signal.

        When the script ends, the rest of its process group is killed. When an exception such as Ctrl-C ends the wait,
        the script and all its descendants, daemons too, get SIGTERM and, after the time of grace, SIGKILL.
        """
        tag = uuid.uuid4().hex
        process = subprocess.Popen(
            # It tells its process group first: a shell that has not yet done so holds the pipe open.
            ["/bin/bash", "-c", f"echo $$ >&{self._write}; exec {self._write}>&-; {script}"],
            cwd=folder,
            env={**os.environ, **variables, process_tree.VARIABLE: tag},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for pytest, which then ends the script and all that it has started
            pass_fds=(self._write,),
        )
        family = process_tree.Family(lambda: [process.pid])
        ended = os.pidfd_open(process.pid)
        try:
            while not select.select([ended], [], [], PIECE)[0]:
                family.members()  # to know those whose parents will have ended
            os.killpg(process.pid, signal.SIGKILL)  # its own process is not reaped yet, so the number is still its
            return process.wait()
        except BaseException:
            members = lambda: list({*family.members(), *process_tree.tagged_processes(tag)})  # noqa: E731
            process_tree.end_all(members, process.poll, self._grace)
            process.wait()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._write, b"\n")  # it need not be killed
            os.close(ended)
