"""The child process of one task: stands by, receives the task, redirects its output, runs it, ends."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, cast

from pytest_aorta.common.exception_text import describe_exception
from pytest_aorta.common.import_target import import_target
from pytest_aorta.runtime.zygotes import process_tree
from pytest_aorta.runtime.zygotes.channel import Channel
from pytest_aorta.runtime.zygotes.preparation import prepare
from pytest_aorta.runtime.zygotes.task_messages import ChildReport, ChildTask, PrepareOrder


def task_main(channel: Channel, zygote: int, prepared: PrepareOrder, run: Callable[..., Any] | None) -> None:
    """Wait for a task on ``channel``, run it, end the process. Never returns."""
    process_tree.die_with_parent(zygote)
    os.setsid()
    _reseed()
    if prepared["warm_up"] and not prepared["fresh"]:
        with contextlib.suppress(Exception):  # the task that meets the same error will report it
            import_target(prepared["warm_up"])(prepared["argument"])
    task = _take(channel)
    try:
        _move(task["cores"])
        if run is None:
            run = _prepare(channel, prepared)
            if task["hold"]:
                task = _take(channel)
                _move(task["cores"])
        run(task["payload"], channel)
    except BaseException:
        traceback.print_exc()  # into the task's own log
        leave(1)
    _report(channel, {"type": "done"})
    leave(0)


def _take(channel: Channel) -> ChildTask:
    """Wait for a task and its descriptors, and redirect this process to the task's files."""
    received = channel.receive()
    if received is None:
        # Not os._exit, which coverage replaces: it would write a file, and the zygote, which ends as well, would kill
        # this process while it does.
        os.kill(os.getpid(), signal.SIGKILL)
    task = cast(ChildTask, received)
    # Open as long as this process lives, and not in what it executes.
    descriptors = [channel.receive_fd() for _ in range(task["descriptors"])]
    if None in descriptors:
        os._exit(0)
    try:
        redirect(task["stdout"], task["stderr"])
        arm(task["stacks"])
    except OSError as error:  # a folder that has vanished, a full disk
        _report(channel, {"type": "failed", "phase": "launch", "error": describe_exception(error)})
        leave(0)
    return task


def _move(cores: list[int] | None) -> None:
    """Have all threads of this process run on these cores."""
    if cores is not None:
        for thread in os.listdir("/proc/self/task"):  # there is only one, unless it was held
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)


def _prepare(channel: Channel, order: PrepareOrder) -> Callable[..., Any]:
    """In an interpreter that has prepared nothing yet: do so, and give the function to run."""
    try:
        info = prepare(order, channel.send)
        run: Callable[..., Any] = import_target(order["run"])
    except BaseException as error:
        _report(channel, {"type": "failed", "error": describe_exception(error)})
        leave(0)
    _report(channel, {"type": "prepared", "info": info})
    return run


def _report(channel: Channel, report: ChildReport) -> None:
    channel.send(report)


def redirect(stdout: str | None, stderr: str | None) -> None:
    """Point the descriptors 0, 1 and 2 elsewhere, so that native code is caught as well; ``None`` leaves one alone."""
    for path, target in ((os.devnull, 0), (stdout, 1), (stderr, 2)):
        if path is not None:
            flags = os.O_RDONLY if target == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            fd = os.open(path, flags, 0o644)
            os.dup2(fd, target)
            os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        # A crash must not take printed lines with it.
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


def arm(stacks: str | None) -> None:
    """Write Python stacks on a fatal signal (to stderr) and when asked to (to the file ``stacks``)."""
    faulthandler.enable(file=2)
    if stacks is not None:
        fd = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        faulthandler.register(process_tree.STACK_SIGNAL, file=fd, all_threads=True)


def leave(code: int) -> None:
    """Flush and end at once; the interpreter's shutdown belongs to the zygote, not to its forks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _reseed() -> None:
    """Seed the generators that a fork copies, as a fresh interpreter does; ``random`` does so by itself."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
