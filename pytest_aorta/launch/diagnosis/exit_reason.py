"""Why a process ended that sends no events: from its exit code, torch's error file, and its standard error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_aorta.common.file_tail import read_tail
from pytest_aorta.trials.events import FailureData
from pytest_aorta.trials.outcome import signal_name

#: Bytes read from the end of a log.
_TAIL = 2**16

_HEADING = "Traceback (most recent call last):"

#: What torch puts before each line once the ranks know of each other.
_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)

#: The line that ends a traceback.
_RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(: (?P<message>.*))?")

#: How ``faulthandler`` begins what it writes of a crash, and a frame in it.
_CRASHED = "Fatal Python error: "
_FRAME = re.compile(r'  File "')

#: Exit code of an interpreter that an exception has ended.
_UNCAUGHT = 1


def infer_exit_reason(code: int, error_file: dict[str, Any] | None, stderr: Path | str | None) -> FailureData:
    """The failure of a process in its ``run``.

    Args:
        code: not 0; negative for a signal.
        error_file: content of the file that torch's ``record`` writes.
        stderr: a log, or the end of one as text.
    """
    if code < 0:
        name = signal_name(-code)
        if (raised := _printed(stderr, crashed=True)) is not None:
            return {**raised, "signal": name}
        return {"phase": "run", "kind": "signal", "signal": name, "message": f"ended by {name}"}
    raised = _recorded(error_file) or (_printed(stderr) if code == _UNCAUGHT else None)
    if raised is not None:
        return {**raised, "exit_code": code}
    return {"phase": "run", "kind": "exit_code", "exit_code": code, "message": f"ended itself with exit code {code}"}


def _recorded(error_file: dict[str, Any] | None) -> FailureData | None:
    message = None if error_file is None else error_file.get("message")
    if isinstance(message, str):
        return {"phase": "run", "kind": "exception", "message": message}
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    traceback = extra.get("py_callstack") if isinstance(extra, dict) else None
    return _exception(str(message.get("message", "")), traceback if isinstance(traceback, str) else None)


def _printed(stderr: Path | str | None, *, crashed: bool = False) -> FailureData | None:
    """The last traceback of a log; other lines may follow it, as libraries complain when a process ends.

    Where the interpreter has ``crashed``, only of an exception that was ending it: torch may abort such a process
    while its threads still run. A crash within a call has other causes than what was logged before it.
    """
    text = read_tail(stderr, _TAIL) if isinstance(stderr, Path) else stderr or ""
    lines = _PREFIX.sub("", text).splitlines()
    starts = [number for number, line in enumerate(lines) if line == _HEADING]
    if not starts:
        return None
    for number, line in enumerate(lines[starts[-1] + 1 :], starts[-1] + 1):
        if not line.startswith(" ") and _RAISED.fullmatch(line):
            if crashed and not _was_ending(lines[number + 1 :]):
                return None
            return _exception(line, "\n".join(lines[starts[-1] : number + 1]))
    return None


def _was_ending(lines: Sequence[str]) -> bool:
    """Whether ``faulthandler`` says below a traceback that no thread was in Python code any more."""
    crash = next((number for number, line in enumerate(lines) if line.startswith(_CRASHED)), None)
    return crash is not None and "  <no Python frame>" in lines[crash:] and not any(map(_FRAME.match, lines[crash:]))


def _exception(text: str, traceback: str | None) -> FailureData:
    """``text``: type and message, as at the end of a traceback."""
    failure: FailureData = {"phase": "run", "kind": "exception", "message": text}
    found = _RAISED.fullmatch(text.partition("\n")[0])
    if found is not None:
        failure["type"] = found["type"].rpartition(".")[2]
        failure["message"] = text[found.end("type") :].removeprefix(": ")
    if traceback is not None:
        failure["traceback"] = traceback
    return failure
