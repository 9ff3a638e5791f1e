"""``python busy.py COMMAND...``: run a command while every core is busy, or with ``--memory`` while memory is short.

A launcher prefix, so it becomes the command: the loops are children of the command's process, and end with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

#: Share of the free memory that is taken.
_SHARE = 0.8


def _free_bytes() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:")) * 1024


def main() -> None:
    words = sys.argv[1:]
    takes_memory = words[:1] == ["--memory"]
    command = words[takes_memory:]
    parent = os.getpid()
    for _ in range(1 if takes_memory else os.cpu_count() or 1):
        if os.fork():
            continue
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        taken = bytearray(int(_SHARE * _free_bytes())) if takes_memory else bytearray()
        while os.getppid() == parent:
            for at in range(0, len(taken), 4096):
                taken[at] ^= 1
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
