"""Tags in the environment, by which the processes of a zygote or a branch are found after it has died.

``/proc/<pid>/environ`` shows a copy of what a process was started with, which forks and most execs inherit. A branch is
a fork, so it has to overwrite that copy to get a tag of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import uuid
from pathlib import Path

#: The variable. Every process below a zygote has it, with the tag of the process that serves the task.
VARIABLE = "PYTEST_AORTA_ZYGOTE"


def new_tag() -> str:
    """A unique tag; all are of one length."""
    return uuid.uuid4().hex


def change_tag(tag: str) -> None:
    """Give this process, and those that will descend from it, another tag."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # no such numbers in an emulated /proc
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[47]), int(fields[48])  # env_start and env_end of proc(5)
        needle = f"{VARIABLE}=".encode()
        at = (b"\0" + ctypes.string_at(start, end - start)).find(b"\0" + needle) if start else -1
        if at >= 0:
            ctypes.memmove(start + at + len(needle), tag.encode(), len(tag))
    os.environ[VARIABLE] = tag  # for descendants that exec


def tagged_processes(*tags: str) -> list[int]:
    """Pids of this user's other processes that have one of these tags.

    Finds what a dead zygote could no longer adopt.
    """
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return [pid for pid in pids if pid != os.getpid() and has_tag(pid, *tags)]


def has_tag(pid: int, *tags: str) -> bool:
    """Whether a process has one of these tags."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(f"{VARIABLE}={tag}".encode() in environ for tag in tags)
