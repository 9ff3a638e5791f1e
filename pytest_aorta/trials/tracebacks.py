"""The one parser of Python's tracebacks and of the stacks that ``faulthandler`` writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pytest_aorta.common.texts import printable

#: The heading of a traceback.
HEADING = "Traceback (most recent call last):"

#: A frame of a traceback, also in an exception group; or one of ``faulthandler``, which writes no second comma.
_FRAME = re.compile(r'^[ |+]*File "(?P<file>[^"\n]*)", line (?P<line>\d+)(?:,? in (?P<name>[^\n]+))?$', re.MULTILINE)

#: The heading of a thread in stacks; the current one has crashed, or has been asked for its stacks.
_THREAD = re.compile(r"^(?P<current>Current thread|Thread) 0x[0-9a-f]+[^\n]*\(most recent call first\):$", re.MULTILINE)

#: A frame in C, as ``faulthandler`` writes it since Python 3.14: ``Binary file "libx.so", at f+0x12 [0x7f...]``.
_NATIVE = re.compile(
    r'^  Binary file "(?P<file>[^"\n]*)", at (?P<name>[^\n]+?)(?:\+0x[0-9a-f]+)? \[[^\n]*$', re.MULTILINE
)

#: What Python writes between exceptions that follow from each other.
_FOLLOWS = re.compile(
    r"^(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):$",
    re.MULTILINE,
)

#: The line that ends a traceback.
RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(: (?P<message>.*))?")

#: Files of libraries and of the interpreter, which the workload calls.
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|^<")

#: Files of this package that call the workload, and which it may call.
_RUNNER = re.compile(r"(?:^|/)pytest_aorta/(?:common|launch|plugin|probe|runtime|trials|workspace)/")


@dataclass(frozen=True)
class Frame:
    """One call."""

    file: str
    line: int
    name: str

    @property
    def text(self) -> str:
        """``train.py:88 in step``."""
        path = PurePosixPath(self.file.replace("\\", "/"))
        name = f"{path.parent.name}/{path.name}" if path.stem in ("__init__", "__main__") else path.name
        return f"{name}:{self.line}" + (f" in {self.name}" if self.name not in ("", "<module>") else "")

    @property
    def is_of_a_library(self) -> bool:
        """Whether its file is of an installed package or of the interpreter."""
        return _LIBRARY.search(self.file) is not None


def _frame(match: re.Match[str]) -> Frame:
    return Frame(match["file"], int(match["line"]), match["name"] or "")


@dataclass(frozen=True)
class RaisedException:
    """One of the exceptions of a text; ``frames`` are innermost first, ``type`` has no module and may be unknown."""

    frames: tuple[Frame, ...]
    type: str | None
    message: str


def type_and_message(text: str) -> tuple[str | None, str]:
    """Split ``pkg.BadBatch: no labels`` into ``("BadBatch", "no labels")``; the type is ``None`` if the text names
    none."""
    match = RAISED.fullmatch(text.partition("\n")[0])
    if match is None:
        return None, text
    return match["type"].rpartition(".")[2], text[match.end("type") :].removeprefix(": ")


def exceptions_in(text: str) -> list[RaisedException]:
    """The exceptions of a traceback, in their order: each one after the first was raised because of those before it."""
    exceptions = []
    for part in _FOLLOWS.split(text):
        if not part.strip():
            continue
        calls = list(_FRAME.finditer(part))
        rest = part[calls[-1].end() :] if calls else part
        lines = [line for line in rest.splitlines() if line and not line.startswith(" ")]
        exceptions.append(RaisedException(tuple(map(_frame, reversed(calls))), *type_and_message("\n".join(lines))))
    return exceptions


def failed_frames(text: str) -> list[Frame]:
    """The frames in which a process has failed, innermost first.

    Of exceptions that follow from each other, those of the last; of several threads, those of the one that has crashed.
    """
    crashed = next((match for match in _THREAD.finditer(text) if match["current"] == "Current thread"), None)
    if crashed is not None:
        return list(map(_frame, _FRAME.finditer(text[crashed.end() :].partition("\n\n")[0])))
    _, heading, last = text.rpartition(f"{HEADING}\n")
    return list(map(_frame, _FRAME.finditer(last if heading else "")))[::-1]


def native_frames(text: str) -> list[tuple[str, str]]:
    """Function and library of each frame in C, innermost first."""
    return [(match["name"], match["file"]) for match in _NATIVE.finditer(text)]


def threads_in(text: str) -> list[list[Frame]]:
    """The threads of the first dump in a text, each with its innermost frame first; the main thread is the last."""
    threads: list[list[Frame]] = []
    before = ""
    for line in text.splitlines():
        if _THREAD.match(line):
            if before:  # an empty line is between two threads, not between two dumps
                break
            threads.append([])
        elif threads and (match := _FRAME.match(line)):
            threads[-1].append(_frame(match))
        before = line
    return threads


def own_frames(frames: Sequence[Frame], target: str) -> list[Frame]:
    """The frames of the user's code: not of the standard library, of installed packages, or of this one.

    The package of the workload itself counts, also if it is installed. ``frames``: innermost first. ``target``: of the
    workload, ``FILE:CLASS`` or ``MODULE:CLASS``; empty for not known.
    """
    module = target.rpartition(":")[0]
    package = f"-packages/{module.partition('.')[0]}"
    own: list[Frame] = []
    for frame in frames:
        if _RUNNER.search(frame.file):
            if own:  # what follows has started the trial
                break
        elif module.endswith(".py"):
            own += [frame] if frame.file == module or not frame.is_of_a_library else []
        elif not frame.is_of_a_library or (
            module and (f"{package}/" in frame.file or frame.file.endswith(f"{package}.py"))
        ):
            own.append(frame)
    return own


#: How torch raises in a parent what was raised in a worker (``torch._utils.ExceptionWrapper``).
_OF_A_WORKER = re.compile(r"Caught \w+ (in .+)\.\nOriginal Traceback")
_LAST_OF_WORKER = re.compile(r"^[\w.]+: ", re.MULTILINE)


def own_message(message: str) -> str:
    """What an exception of a worker says: ``cannot identify image file (in DataLoader worker process 1)``.

    torch raises such an exception in the parent, with a message that begins with the place and ends with the exception.
    """
    wrapped = _OF_A_WORKER.match(message)
    raised = None if wrapped is None else _LAST_OF_WORKER.search(message, message.rfind(HEADING) + len(HEADING))
    return message if wrapped is None or raised is None else f"{message[raised.end() :].strip()} ({wrapped[1]})"


# Texts to show: the lines of tracebacks and stacks without this package's own.


def _is_frame(line: str) -> bool:
    return line.startswith("  File ")


def without_callers(traceback: Sequence[str]) -> list[str]:
    """The lines of a traceback without this package's frames."""
    kept: list[str] = []
    skipping = False
    for line in traceback:
        if _is_frame(line):
            skipping = "/pytest_aorta/" in line
        elif not line.startswith("    "):
            skipping = False
        if not skipping:
            kept.append(line)
    return kept


def without_runner(lines: Iterable[str]) -> list[str]:
    """Lines without the callers of the workload: in a stack, this package's first frame and all below it."""
    kept, below = [], False
    for line in lines:
        below = _is_frame(line) and (below or ("/pytest_aorta/" in line and _FRAME.match(line) is not None))
        if not below:
            kept.append(line)
    return kept


#: Bytes of stacks that are looked at.
_STACKS = 2**18

#: In an excerpt of stacks: frames of each thread, and threads.
_FRAMES, _THREADS = 4, 8

_START_OF_THREAD = re.compile(r'  File ".*/threading\.py", line \d+ in (run|_bootstrap|_bootstrap_inner)$')


def stacks_excerpt(path: Path) -> list[str]:
    """Of stacks that faulthandler has written: each thread's heading and its innermost frames, without the runner's."""
    try:
        with path.open("rb") as file:
            text = printable(file.read(_STACKS).decode(errors="replace"))
    except OSError:
        return []
    threads: list[list[str]] = []
    for line in without_runner(text.split("\n")):
        if _THREAD.match(line):
            threads.append([line])
        elif threads and _is_frame(line) and not _START_OF_THREAD.match(line):
            threads[-1].append(line)
    threads = [thread for thread in threads if len(thread) > 1]
    kept = [
        line
        for thread in threads[:_THREADS]
        for line in (*thread[: _FRAMES + 1], *_more(thread, _FRAMES + 1, "frames"))
    ]
    return [*kept, *_more(threads, _THREADS, "threads")]


def _more(several: Sequence[object], kept: int, what: str) -> list[str]:
    return [f"  ... {len(several) - kept} more {what}"] if len(several) > kept else []
