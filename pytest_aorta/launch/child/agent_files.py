"""Temporary files of torch's agent: in a folder that is removed with the trial, and not in the TMPDIR of the workload.

The TMPDIR of a failed trial is kept for what the workload has left there. torch's agent leaves error files of ranks,
and the pipe of its watchdog, which some versions make in ``/tmp``.
"""

from __future__ import annotations

import os
import tempfile

#: What ``tempfile`` remembered in this process before.
_before: str | None = None

_TIMER_FILE = "TORCHELASTIC_TIMER_FILE"


def use_for_agent(folder: str) -> None:
    """Have this process, and an agent that it starts, make their temporary files in ``folder``, if it is one."""
    global _before
    if not os.path.isdir(folder):
        return
    if os.environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1":
        os.environ.setdefault(_TIMER_FILE, os.path.join(folder, "watchdog"))
    _before, tempfile.tempdir = tempfile.tempdir, folder


def use_for_rank(folder: str) -> None:
    """In a rank that was forked from that process: have ``tempfile`` look as it did before."""
    if tempfile.tempdir == folder:
        tempfile.tempdir = _before
