"""The compilers on PATH, which extensions of torch are built with."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pytest_aorta.probe.guard import describe
from pytest_aorta.probe.tool import ToolFailed, ask_all

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts, Guard
    from pytest_aorta.probe.tool import Answer

_TIMEOUT_SEC = 3.0
_TOOLS = ("gcc", "g++", "clang", "hipcc", "nvcc")
# The line that names the version, where it is not the first.
_MARKS = {"nvcc": "release ", "hipcc": "HIP version"}


def compilers(guard: Guard) -> Facts:
    """``path`` and ``version`` (the line of its output that has it) of each; ``None`` for one that is not on PATH.

    All run at once, for at most three seconds together. None of them looks at a GPU for this.
    """
    paths = {name: shutil.which(name) for name in _TOOLS}
    answers = ask_all({name: [path, "--version"] for name, path in paths.items() if path}, _TIMEOUT_SEC)
    found: Facts = {}
    for name, path in paths.items():
        found[name] = None if path is None else {"path": path, "version": None}
        if path is not None:
            try:
                found[name]["version"] = _version(name, answers[name])
            except Exception as error:
                guard.reasons.append(describe(f"compilers.{name}", error))
    return found


def _version(name: str, answer: Answer | Exception) -> str:
    if isinstance(answer, Exception):
        raise answer
    lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode != 0 or not lines:
        raise ToolFailed(answer.complaint())
    mark = _MARKS.get(name, "")
    return next((line for line in lines if mark in line), lines[0])
