"""Reading the stacks that a process wrote before it was ended, and saying in a few words where it was."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

#: A thread's heading, and one of its frames, innermost first, as faulthandler writes them.
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.+)')

#: Bytes of a dump that are looked at.
_LOOKED_AT = 2**20

#: Files of libraries and of the interpreter, which the workload calls.
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<")

#: Functions that only call others.
_WRAPPERS = {"wrapper", "inner", "wrapped", "decorate_context", "_fn", "<lambda>"}

_COLLECTIVES = "/torch/distributed/distributed_c10d.py"


@dataclass(frozen=True)
class Frame:
    """One call of a stack."""

    file: str
    line: int
    name: str


@dataclass(frozen=True)
class Location:
    """Where a process was.

    Attributes:
        text: ``all_reduce in step() at fsdp.py line 88``.
        collective: the function of ``torch.distributed`` that it was in, if it was in one.
    """

    text: str
    collective: str | None


def read_dump(path: Path) -> list[list[Frame]]:
    """The threads of the first dump in a file, each with its innermost frame first; the main thread is the last.

    Empty when there is no dump: the process has not reacted to the signal.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_LOOKED_AT).decode(errors="replace")
    except OSError:
        return []
    return parse_dump(text)


def parse_dump(text: str) -> list[list[Frame]]:
    """The threads of the first dump in a text, as ``read_dump``."""
    threads: list[list[Frame]] = []
    before = ""
    for line in text.splitlines():
        if _THREAD.match(line):
            if before:  # an empty line is between two threads, not between two dumps
                break
            threads.append([])
        elif threads and (found := _FRAME.match(line)):
            threads[-1].append(Frame(found["file"], int(found["line"]), found["name"]))
        before = line
    return threads


def locate(threads: list[list[Frame]], source: str | None = None) -> Location | None:
    """Where the main thread was, by a frame of the workload's code.

    Args:
        threads: of ``read_dump``.
        source: the workload's file.
    """
    if not threads or not threads[-1]:
        return None
    frames = threads[-1]
    # Frames of the workload are those inside of this package's.
    until = next((at for at, frame in enumerate(frames) if "/pytest_aorta/" in frame.file), len(frames))
    frames = frames[:until] or frames
    own = _own(frames, source)
    inside = [frame.name for frame in frames[:own] if frame.name not in _WRAPPERS]
    called = f"{inside[-1]} in " if inside else ""
    where = frames[own]
    collective = next((frame.name for frame in reversed(frames) if _is_collective(frame)), None)
    function = "" if where.name == "<module>" else f"{where.name}() at "
    return Location(f"{called}{function}{Path(where.file).name} line {where.line}", collective)


def _own(frames: list[Frame], source: str | None) -> int:
    """Index of the innermost frame of the workload's code; without one, of the innermost frame."""
    own = (at for at, frame in enumerate(frames) if frame.file == source or not _LIBRARY.search(frame.file))
    return next(own, 0)


def _is_collective(frame: Frame) -> bool:
    return frame.file.endswith(_COLLECTIVES) and not frame.name.startswith("_") and frame.name not in _WRAPPERS
