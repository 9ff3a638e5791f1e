"""Tracebacks and stacks of a trial, without the frames of the runner."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: A line of faulthandler's that shows the runner and not the workload.
_RUNNER_FRAME = re.compile(r'  File ".*/pytest_aorta/.*", line \d+ in ')


def own_frames(traceback: Sequence[str]) -> list[str]:
    """The lines of a traceback without the runner's own frames at its top."""
    kept: list[str] = []
    skipping = False
    for line in traceback:
        if line.startswith("  File "):
            skipping = "/pytest_aorta/" in line
        elif not line.startswith("    "):
            skipping = False
        if not skipping:
            kept.append(line)
    return kept


def without_runner(lines: Iterable[str]) -> list[str]:
    """Lines without the callers of the workload: in a stack, the runner's first frame and all below it."""
    kept, below = [], False
    for line in lines:
        below = line.startswith("  File ") and (below or _RUNNER_FRAME.match(line) is not None)
        if not below:
            kept.append(line)
    return kept
