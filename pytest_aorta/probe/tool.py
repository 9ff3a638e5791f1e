"""One command-line tool, asked one question, within a bounded time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

# What a trial sets for itself must not reach the tools that describe its machine: a preloaded library or another
# Python path breaks them, and GIT_DIR (set while git runs a hook) makes git answer about another repository.
_NOT_FOR_TOOLS = ("GIT_", "LD_AUDIT", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH")

_KILL_GRACE_SEC = 1.0


class ToolFailed(RuntimeError):
    """A tool could not give an answer."""


class ToolTimedOut(ToolFailed):
    """A tool gave no answer in time, and was killed."""


def ask(argv: Sequence[str], timeout_sec: float, extra_env: Mapping[str, str] | None = None) -> str:
    """Run ``argv`` and return what it prints; waits also for everything that holds its output open.

    Starts no threads. After ``timeout_sec`` seconds the tool's process group is killed.

    Raises:
        ToolTimedOut: it gave no answer in time.
        ToolFailed: its exit code is not 0; the message has its whole output.
        OSError: it cannot be started.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_TOOLS)}
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environ, "LC_ALL": "C", **(extra_env or {})},
        cwd="/",
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )
    # Not subprocess.run(): after its timeout it waits for the killed process without a limit, and a process stuck in a
    # wedged GPU's driver does not die.
    try:
        stdout, stderr = process.communicate(timeout=timeout_sec)
    except BaseException as error:
        left = _kill(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise ToolTimedOut(f"{argv[0]} gave no answer within {timeout_sec:g} s{left}") from None
        raise
    if process.returncode != 0:
        said = (stderr.strip() or stdout.strip()).replace("\n", "; ")
        raise ToolFailed(f"{os.path.basename(argv[0])} exited with {process.returncode}{': ' if said else ''}{said}")
    return stdout


def _kill(process: subprocess.Popen[str]) -> str:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(timeout=_KILL_GRACE_SEC)
    except subprocess.TimeoutExpired:
        return f"; process {process.pid} did not die of SIGKILL"
    return ""
