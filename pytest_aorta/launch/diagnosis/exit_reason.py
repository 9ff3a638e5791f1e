"""Why a process ended that tells nothing of itself: from its exit code, torch's error file, and its standard error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pytest_aorta.common.file_tail import read_tail
from pytest_aorta.trials.outcome import signal_name

#: Bytes read from the end of a log.
_TAIL = 2**16

_HEADING = "Traceback (most recent call last):"

#: What torch puts before each line once the ranks know of each other.
_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)

#: The line that ends a traceback.
_RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(: (?P<message>.*))?")

#: Exit code of an interpreter that an exception has ended.
_UNCAUGHT = 1


def last_words(code: int, error_file: dict[str, Any] | None, stderr: Path | None) -> dict[str, Any]:
    """Kind of a failure, its message, and what else belongs to it.

    Args:
        code: not 0; negative for a signal.
        error_file: content of the file that torch's ``record`` writes.
        stderr: a log.
    """
    if code < 0:
        name = signal_name(-code)
        return {"kind": "signal", "signal": name, "message": f"ended by {name}"}
    raised = _recorded(error_file) or (_printed(stderr) if code == _UNCAUGHT else None)
    if raised is not None:
        return {"kind": "exception", "exit_code": code, **raised}
    return {"kind": "exit_code", "exit_code": code, "message": f"ended itself with exit code {code}"}


def _recorded(error_file: dict[str, Any] | None) -> dict[str, str] | None:
    message = None if error_file is None else error_file.get("message")
    if isinstance(message, str):
        return {"message": message}
    if not isinstance(message, dict):
        return None
    told = message.get("extraInfo")
    traceback = told.get("py_callstack") if isinstance(told, dict) else None
    return {
        **_type_and_message(str(message.get("message", ""))),
        **({"traceback": traceback} if isinstance(traceback, str) else {}),
    }


def _printed(stderr: Path | None) -> dict[str, str] | None:
    """The last traceback of a log; other lines may follow it, as libraries complain when a process ends."""
    lines = _PREFIX.sub("", read_tail(stderr, _TAIL)).splitlines() if stderr is not None else []
    starts = [number for number, line in enumerate(lines) if line == _HEADING]
    if not starts:
        return None
    for number, line in enumerate(lines[starts[-1] + 1 :], starts[-1] + 1):
        if not line.startswith(" ") and _RAISED.fullmatch(line):
            return {**_type_and_message(line), "traceback": "\n".join(lines[starts[-1] : number + 1])}
    return None


def _type_and_message(line: str) -> dict[str, str]:
    found = re.fullmatch(_RAISED, line.partition("\n")[0])
    if found is None:
        return {"message": line}
    rest = line[found.end("type") :].removeprefix(": ")
    return {"type": found["type"].rpartition(".")[2], "message": rest}
