"""Marks in the environment, by which the processes of a zygote or a branch are found after it has died.

``/proc/<pid>/environ`` shows a copy of what a process was started with, which forks and most execs inherit. A branch is
a fork, so it has to overwrite that copy to get a mark of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import uuid
from pathlib import Path

from pytest_aorta.runtime.zygotes import process_tree

#: The variable. Every process below a zygote has it, with the mark of the process that serves the task.
MARK = "PYTEST_AORTA_ZYGOTE"


def new_mark() -> str:
    """A mark that nobody else has; all are of one length."""
    return uuid.uuid4().hex


def change_own(mark: str) -> None:
    """Give this process, and what will descend from it, another mark."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # no such numbers in an emulated /proc
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[47]), int(fields[48])  # env_start and env_end of proc(5)
        needle = f"{MARK}=".encode()
        at = (b"\0" + ctypes.string_at(start, end - start)).find(b"\0" + needle) if start else -1
        if at >= 0:
            ctypes.memmove(start + at + len(needle), mark.encode(), len(mark))
    os.environ[MARK] = mark  # for descendants that exec


def bearers(*marks: str) -> list[int]:
    """Processes that have one of these marks."""
    return process_tree.marked(MARK, *marks)


def bears(pid: int, *marks: str) -> bool:
    """Whether a process has one of these marks."""
    return process_tree.carries(pid, MARK, *marks)
