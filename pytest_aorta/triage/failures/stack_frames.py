"""Frames in the text of a traceback, and in what ``faulthandler`` writes when a process crashes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

#: A frame of a traceback, also of one in an exception group; or one of ``faulthandler``, which has no second comma.
_FRAME = re.compile(r'^[ |+]*File "(?P<file>[^"\n]*)", line (?P<line>\d+)(?:,? in (?P<name>[^\n]+))?$', re.MULTILINE)

#: The heading of a traceback; a message may contain that of another process.
_TRACEBACK = re.compile(r"^[^\n]*Traceback \(most recent call last\):$", re.MULTILINE)

#: What is between the tracebacks of exceptions that follow from each other.
_FOLLOWS = re.compile(
    r"^(?:The above exception was the direct cause of|During handling of the above exception, another) .*$",
    re.MULTILINE,
)

#: The heading of the thread that has crashed.
_CRASHED = re.compile(r"^Current thread 0x[0-9a-f]+[^\n]*\(most recent call first\):$", re.MULTILINE)

#: A frame in C, as ``faulthandler`` writes it since Python 3.14: ``Binary file "libx.so", at f+0x12 [0x7f...]``.
_NATIVE = re.compile(r'^  Binary file "(?P<file>[^"\n]*)", at (?P<name>[\w.:~<>@]+)[^\n]*$', re.MULTILINE)

#: Functions in C that are between a fault and the frame that is at fault.
_NOT_AT_FAULT = re.compile(r"_?Py|faulthandler|__restore_rt|gsignal|raise|abort|pthread_kill|__GI_|\+?0x")

#: Files of this package, which call the workload, and which it may call.
_RUNNER = re.compile(r"(?:^|/)pytest_aorta/(?:common|launch|plugin|probe|registry|runtime|trials|workspace)/")

#: Files of libraries and of the interpreter, which the workload calls.
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|^<")


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


def frames_of(text: str) -> list[Frame]:
    """The frames in which a process has failed, innermost first.

    Of exceptions that follow from each other, those of the last; of several threads, those of the one that has crashed.
    """
    crashed = _CRASHED.search(text)
    if crashed is not None:
        return _frames(text[crashed.end() :].partition("\n\n")[0])
    headings = list(_TRACEBACK.finditer(text))
    return _frames(text[headings[-1].end() :])[::-1] if headings else []


def first_traceback(text: str) -> tuple[list[Frame], str] | None:
    """Of exceptions that follow from each other, the frames (innermost first) and the last line of the first.

    ``None`` where there is one only.
    """
    first, *others = _FOLLOWS.split(text)
    if not others:
        return None
    frames = list(_FRAME.finditer(first))
    raised = (
        line for line in first[frames[-1].end() if frames else 0 :].splitlines() if line and not line[0].isspace()
    )
    return frames_of(first), next(raised, "")


def native_function(text: str) -> str:
    """The innermost function in C of a crash, as far as it is known: empty where not."""
    names = (found["name"] for found in _NATIVE.finditer(text))
    return next((name for name in names if not _NOT_AT_FAULT.match(name)), "")


def own_frames(frames: Sequence[Frame], target: str) -> list[Frame]:
    """The frames of the user's code: not of the standard library, of installed packages, or of this one.

    The package that the workload itself is in counts, also if it is installed.

    Args:
        frames: innermost first.
        target: of the workload: ``FILE:CLASS`` or ``MODULE:CLASS``; empty for not known.
    """
    module = target.rpartition(":")[0]
    package = module.partition(".")[0]
    own = module if module.endswith(".py") else f"-packages/{package}"

    def is_own(frame: Frame) -> bool:
        if not _LIBRARY.search(frame.file):
            return True
        if own.endswith(".py"):
            return frame.file == own
        return bool(package) and (f"{own}/" in frame.file or frame.file.endswith(f"{own}.py"))

    found: list[Frame] = []
    for frame in frames:
        if _RUNNER.search(frame.file):
            if found:  # what follows has started the trial
                break
        elif is_own(frame):
            found.append(frame)
    return found


def _frames(text: str) -> list[Frame]:
    return [Frame(found["file"], int(found["line"]), found["name"] or "") for found in _FRAME.finditer(text)]
