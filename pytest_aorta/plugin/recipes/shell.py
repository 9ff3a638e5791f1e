"""One command of a recipe in a shell: a process group of its own, which ends as a whole."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from pytest_aorta.common.bounded_waits import wait_bounded
from pytest_aorta.runtime import process_tree as process_tags
from pytest_aorta.runtime.process_tree import Family, die_with_parent, end_all


def run_shell(script: str, folder: Path, variables: Mapping[str, str], output: IO[bytes] | None, grace: float) -> int:
    """Run a script by ``/bin/bash -c``; its exit status, negative for a signal.

    What it has left in its process group when it ends is killed. When an exception ends the wait, such as Ctrl-C, it
    and all its descendants, daemons too, get SIGTERM and, ``grace`` seconds later, SIGKILL.

    Args:
        script: for the shell.
        folder: it starts in.
        variables: on top of those of this process.
        output: what it writes goes to; ``None`` for that of this process.
        grace: seconds.

    Raises:
        OSError: it cannot be started.
    """
    parent, tag = os.getpid(), process_tags.new_tag()
    process = subprocess.Popen(
        ["/bin/bash", "-c", script],
        cwd=folder,
        env={**os.environ, **variables, process_tags.VARIABLE: tag},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for pytest, which then ends it with all that it has started
        preexec_fn=lambda: die_with_parent(parent),
    )
    family = Family(lambda: [process.pid])
    ended = os.pidfd_open(process.pid)

    def wait(seconds: float) -> bool:
        if select.select([ended], [], [], seconds)[0]:
            return True
        family.members()  # to know those whose parents will have ended
        return False

    def members() -> list[int]:
        return list({*family.members(), *process_tags.tagged_processes(tag)})

    try:
        wait_bounded(wait)
        os.killpg(process.pid, signal.SIGKILL)  # its own process is not reaped yet, so the number is still its
        return process.wait()
    except BaseException:
        end_all(members, process.poll, grace)
        process.wait()
        raise
    finally:
        os.close(ended)
