"""One command-line tool, asked one question, within a bounded time."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_aorta.probe.guard import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_aorta.probe.guard import Facts, Guard


# What a trial sets for itself must not reach the tools that describe its machine: a preloaded library or another
# Python path breaks them, and GIT_DIR (set while git runs a hook) makes git answer about another repository.
_NOT_FOR_TOOLS = ("GIT_", "LD_AUDIT", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH")

_KILL_GRACE_SEC = 1.0
# After another tool has used up their common time, an answer that has been given is still read.
_LAST_LOOK_SEC = 0.1


class ToolFailed(RuntimeError):
    """A tool could not give an answer."""


class ToolTimedOut(ToolFailed):
    """A tool gave no answer in time, and was killed."""


@dataclass(frozen=True)
class Answer:
    """How a tool ended, and what it said."""

    command: str
    returncode: int
    stdout: str
    stderr: str

    def complaint(self) -> str:
        """One line that says how the tool failed."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return f"{self.command} exited with {self.returncode}" + (f": {lines[0]}" if lines else "")


def ask(argv: Sequence[str], timeout_sec: float, extra_env: Mapping[str, str] | None = None) -> Answer:
    """Run ``argv`` and wait at most ``timeout_sec`` seconds for it and everything that holds its output open.

    Starts no threads. Raises ``ToolTimedOut`` after having killed the tool's process group, ``OSError`` when it cannot
    be started.
    """
    return _finish(_start(argv, extra_env), timeout_sec, timeout_sec)


def ask_all(commands: Mapping[str, Sequence[str]], timeout_sec: float) -> dict[str, Answer | Exception]:
    """Run all ``commands`` side by side, for at most ``timeout_sec`` seconds together; by name the answer or the error.

    What a tool says must fit into a pipe (64 KiB): the tools are listened to one after the other.
    """
    deadline = time.monotonic() + timeout_sec
    started: dict[str, subprocess.Popen[bytes]] = {}
    answers: dict[str, Answer | Exception] = {}
    try:
        for name, argv in commands.items():
            try:
                started[name] = _start(argv, None)
            except OSError as error:
                answers[name] = error
        while started:
            name = next(iter(started))
            try:
                left = max(deadline - time.monotonic(), _LAST_LOOK_SEC)
                answers[name] = _finish(started.pop(name), left, timeout_sec)
            except ToolFailed as error:
                answers[name] = error
    finally:  # interrupted
        for process in started.values():
            _kill(process)
    return answers


def _start(argv: Sequence[str], extra_env: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_TOOLS)}
    environ |= {"LC_ALL": "C", **(extra_env or {})}
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
        cwd="/",
        start_new_session=True,
    )


def _finish(process: subprocess.Popen[bytes], left_sec: float, timeout_sec: float) -> Answer:
    # Not subprocess.run(): after its timeout it waits for the killed process without a limit, and a process stuck in a
    # wedged GPU's driver does not die.
    program: str = process.args[0]  # type: ignore[index, assignment]
    try:
        stdout, stderr = process.communicate(timeout=left_sec)
    except BaseException as error:
        died = _kill(process)
        if isinstance(error, subprocess.TimeoutExpired):
            left = "" if died else f"; process {process.pid} did not die of SIGKILL"
            raise ToolTimedOut(f"{program} gave no answer within {timeout_sec:g} s{left}") from None
        raise
    return Answer(
        command=os.path.basename(program),
        returncode=process.returncode,
        stdout=stdout.decode("utf-8", "replace"),
        stderr=stderr.decode("utf-8", "replace"),
    )


def _kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill the tool's group and reap it; False when it is still there."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(timeout=_KILL_GRACE_SEC)
    except subprocess.TimeoutExpired:
        return False
    return True


_TIMEOUT_SEC = 3.0
_TOOLS = ("gcc", "g++", "clang", "hipcc", "nvcc")
# The line that names the version, where it is not the first.
_MARKS = {"nvcc": "release ", "hipcc": "HIP version"}


def compilers(guard: Guard) -> Facts:
    """``path`` and ``version`` (the line of its output that has it) of each; ``None`` for one that is not on PATH.

    All run at once, for at most three seconds together. None of them looks at a GPU for this.
    """
    paths = {name: shutil.which(name) for name in _TOOLS}
    answers = ask_all({name: [path, "--version"] for name, path in paths.items() if path}, _TIMEOUT_SEC)
    found: Facts = {}
    for name, path in paths.items():
        found[name] = None if path is None else {"path": path, "version": None}
        if path is not None:
            try:
                found[name]["version"] = _version(name, answers[name])
            except Exception as error:
                guard.reasons.append(describe(f"compilers.{name}", error))
    return found


def _version(name: str, answer: Answer | Exception) -> str:
    if isinstance(answer, Exception):
        raise answer
    lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode != 0 or not lines:
        raise ToolFailed(answer.complaint())
    mark = _MARKS.get(name, "")
    return next((line for line in lines if mark in line), lines[0])
