"""Writes how much memory a rank holds after each step, on the host and on its device.

Stands alone: it is loaded by path into the program's own interpreter. Nothing is reset, because the program may look at
the same counters: a peak is that of the process up to a step.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

#: Lines of a file between which the distance of the steps doubles, so that long runs leave short files.
_LINES = 2000


class _MallInfo(ctypes.Structure):
    """Of glibc 2.33 and later; see ``man mallinfo``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


class MemorySampler:
    """``rank_R.jsonl`` has a line per step: its number, and bytes: held by malloc, resident, resident at most, in use
    on the device, in use there at most, kept by malloc for later. What cannot be had is null."""

    def __init__(self, options: dict[str, Any], folder: str, rank: int | None) -> None:
        self._stem = os.path.join(folder, f"process_{os.getpid()}" if rank is None else f"rank_{rank}")
        self._history = int(options["history"])
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._out: Any = None
        self._written, self._stride = 0, 1
        self._malloc: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
        if self._malloc is not None:
            self._malloc.restype = _MallInfo

    def start(self) -> None:
        if self._history:
            self._watch_allocator()

    def step(self, number: int) -> None:
        if number % self._stride == 0:
            self._write(number)

    def stop(self) -> None:
        if self._out is not None:
            self._out.close()

    def _write(self, number: int) -> None:
        if self._out is None:
            # Unbuffered: a process that runs out of memory is killed without a word.
            self._out = open(f"{self._stem}.jsonl", "ab", buffering=0)  # noqa: SIM115 - open for the whole run
        held, kept = self._allocated()
        line = [number, held, *self._resident(), *self._device(), kept]
        self._out.write(json.dumps(line).encode() + b"\n")
        self._written += 1
        if self._written % _LINES == 0:
            self._stride *= 2

    def _allocated(self) -> tuple[int | None, int | None]:
        if self._malloc is None:
            return None, None
        info = self._malloc()
        return int(info.uordblks + info.hblkhd), int(info.fordblks)

    def _resident(self) -> tuple[int | None, int | None]:
        try:
            with open("/proc/self/statm", "rb") as statm, open("/proc/self/status", "rb") as status:
                now = int(statm.read().split()[1]) * self._page
                return now, int(status.read().partition(b"VmHWM:")[2].split(None, 1)[0]) * 1024
        except (OSError, IndexError, ValueError):
            return None, None

    def _device(self) -> tuple[int | None, int | None]:
        torch: Any = sys.modules["torch"]
        if not torch.cuda.is_initialized():
            return None, None
        statistics = torch.cuda.memory_stats()
        return statistics["allocated_bytes.all.current"], statistics["allocated_bytes.all.peak"]

    def _watch_allocator(self) -> None:
        """Save the allocator's snapshot, with where each block was allocated, when the device has no memory left."""
        torch: Any = sys.modules["torch"]
        if not torch.cuda.is_available():
            return

        def out_of_memory(device: int, wanted: int, allowed: int, free: int) -> None:
            path = Path(f"{self._stem}.out_of_memory.json")
            if not path.exists():  # a program may catch the first, and go on
                path.write_text(json.dumps({"device": device, "wanted": wanted, "free": free}))
                torch.cuda.memory._dump_snapshot(f"{self._stem}.snapshot.pickle")

        def watch() -> None:
            torch.cuda.memory._record_memory_history(max_entries=self._history, stacks="python")
            torch._C._cuda_attach_out_of_memory_observer(out_of_memory)

        # Waits until the program itself starts the device.
        torch.cuda._lazy_call(watch)


#: The name that ``start.py`` looks for, see ``collectors.contract``.
InProcess = MemorySampler
