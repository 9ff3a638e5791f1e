"""Activity of running processes: CPU, input and output, and their position in the source."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from pytest_aorta.runtime.process_tree import STACK_SIGNAL, catches, request_stacks
from pytest_aorta.trials.tracebacks import Frame, threads_in

#: Share of a core, and bytes per second, below which a process counts as idle.
_IDLE, _STILL = 0.05, 10_000

#: Seconds of samples that are kept, and between two looks at the stacks.
_KEPT, _BETWEEN = 120.0, 1.0

#: Seconds that a process has to begin with its stacks, and between two looks at them.
_PATIENCE, _PIECE = 3.0, 0.2

#: Characters of a line of source that are shown.
_SHOWN = 50

#: Files of the interpreter, of what is installed, and of this package.
_OF_OTHERS = re.compile(r"<|.*/(?:site-packages|dist-packages|lib/python3\.\d+|pytest_aorta)/")

#: Functions of ``threading`` in which a thread waits for the end of another one.
_WAITS_FOR_THREADS = {"join", "_shutdown", "_wait_for_tstate_lock"}


def _is_of_others(frame: Frame) -> bool:
    return _OF_OTHERS.match(frame.file) is not None


def _call_in(frame: Frame) -> str:
    """Module and function, as they are called: ``queue.get``."""
    path = Path(frame.file)
    return f"{path.parent.name if path.stem == '__init__' else path.stem}.{frame.name}"


def place_in(stacks: str) -> str:
    """The position of a program in a dump of ``faulthandler``: ``in queue.get at train.py:12``; empty if unknown.

    It is the innermost line of the user's own code and the function called there. Threads that wait for other threads
    count only if there is no other.
    """
    threads = [frames for frames in threads_in(stacks) if frames]

    def says(frames: list[Frame]) -> tuple[bool, bool]:
        waits = frames[0].name in _WAITS_FOR_THREADS and frames[0].file.endswith("threading.py")
        return not waits, any(not _is_of_others(frame) for frame in frames)

    if not threads:
        return ""
    frames = max(reversed(threads), key=says)  # the main thread is the last one
    own = next((number for number, frame in enumerate(frames) if not _is_of_others(frame)), None)
    if own is None:
        packages = [
            re.split(r"(?:site|dist)-packages/", frame.file)[-1] for frame in frames if "packages/" in frame.file
        ]
        if packages and any("importlib" in frame.file for frame in frames):
            return f"in import {packages[-1].partition('/')[0].removesuffix('.py')}"
        return f"in {_call_in(frames[0])}"
    frame, source = frames[own], linecache.getline(frames[own].file, frames[own].line).strip()
    where = f"{os.path.basename(frame.file)}:{frame.line}"
    called = frames[own - 1] if own else None
    if called is not None and "importlib" in called.file:
        return f"in {source or f'an import at {where}'}"
    if called is not None:
        return f"in {_call_in(called)} at {where}"
    return f"in {source if 0 < len(source) <= _SHOWN else frame.name} at {where}"


class _Sample(NamedTuple):
    at: float
    cpu: float
    bytes: float


class Activity:
    """Samples the descendants of a process; call ``look()`` several times a second.

    A process waits if it neither computes nor reads nor writes, and its stacks do not change.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, tuple[float, float]] = {}
        self._cpu = self._bytes = 0.0
        self._samples: deque[_Sample] = deque()
        self._used: dict[int, float] = {}

    def _processes(self) -> Iterator[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            yield from psutil.Process(self._pid).children(recursive=True)

    def look(self) -> None:
        known = {}
        for process in self._processes():
            with contextlib.suppress(psutil.Error, AttributeError):
                cpu, moved = sum(process.cpu_times()[:2]), 0.0
                with contextlib.suppress(psutil.Error, AttributeError):
                    counters = process.io_counters()
                    moved = float(counters.read_chars + counters.write_chars)
                before = self._known.get(process.pid, (0.0, 0.0))
                known[process.pid] = cpu, moved
                more = max(0.0, cpu - before[0])
                self._cpu += more
                self._bytes += max(0.0, moved - before[1])
                self._used[process.pid] = self._used.get(process.pid, 0.0) + more
        self._known = known
        now = time.monotonic()
        self._samples.append(_Sample(now, self._cpu, self._bytes))
        while self._samples[0].at < now - _KEPT:
            self._samples.popleft()

    def _rates(self, seconds: float) -> tuple[float, float]:
        """Cores used, and bytes per second, in the last ``seconds``."""
        if not self._samples:
            return 0.0, 0.0
        last = self._samples[-1]
        first = next(each for each in self._samples if each.at >= last.at - seconds)
        took = max(last.at - first.at, 0.1)
        return (last.cpu - first.cpu) / took, (last.bytes - first.bytes) / took

    def computes(self, seconds: float) -> bool:
        """Whether they used the CPU noticeably in the last ``seconds``."""
        return self._rates(seconds)[0] > _IDLE

    def now(self, seconds: float) -> tuple[str, bool]:
        """A sentence on the last ``seconds``, such as ``it waits (0 % of a core, in ...)``, and whether they wait.

        Asks the Python processes for their stacks twice, which may wake them from a system call.
        """
        share, moved = self._rates(seconds)
        listening = self._listening()
        before = {pid: _stacks_of(pid, path) for pid, path in listening.items()}
        place, is_same = "", True
        if before:
            time.sleep(_BETWEEN)
            # Any thread may be the one that answers, and is called the current one.
            after = {pid: _stacks_of(pid, listening[pid]) for pid in before}
            is_same = all(threads_in(before[pid]) == threads_in(after[pid]) for pid in before)
            # The program itself is the first; where it computes, the one that does most of it.
            busiest = max(before, key=lambda pid: self._used.get(pid, 0.0))
            place = place_in(before[busiest if share > _IDLE else next(iter(before))])
        facts = ", ".join(filter(None, [f"{100 * share:.0f} % of a core", place]))
        if share > _IDLE:
            return f"it computes ({facts})", False
        if moved > _STILL:
            return f"it reads and writes ({moved / 1e6:.2g} MB/s, {facts})", False
        return f"it waits ({facts})", is_same

    def _listening(self) -> dict[int, Path]:
        """Python processes that can print their stacks, parents first, and the file that each prints to."""
        sockets = {}
        for process in self._processes():
            if not catches(process.pid, STACK_SIGNAL):
                continue
            with contextlib.suppress(OSError):
                links = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
                if file := next((Path(link) for link in links if link.endswith("stacks.log")), None):
                    sockets[process.pid] = file
        return sockets


def _stacks_of(pid: int, file: Path) -> str:
    with contextlib.suppress(OSError):
        before, size, give_up = file.stat().st_size, -1, time.monotonic() + _PATIENCE
        request_stacks([pid])
        while size != file.stat().st_size or (size == before and time.monotonic() < give_up):
            size = file.stat().st_size  # on a busy machine, it is written piece by piece
            time.sleep(_PIECE)
        with file.open("rb") as dump:
            dump.seek(before)
            return dump.read().decode(errors="replace")
    return ""
