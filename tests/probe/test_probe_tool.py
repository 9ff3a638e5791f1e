"""A tool is asked within a bounded time, in an environment of its own, and leaves nothing behind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_aorta.probe.tool import ToolFailed, ToolTimedOut, ask

if TYPE_CHECKING:
    from pathlib import Path


def test_the_answer_is_what_the_tool_prints() -> None:
    assert ask(["/bin/sh", "-c", "echo out; echo why >&2"], 30) == "out\n"


def test_a_tool_that_fails_says_why() -> None:
    with pytest.raises(ToolFailed, match=r"^sh exited with 3: why$"):
        ask(["/bin/sh", "-c", "echo out; echo why >&2; exit 3"], 30)


def test_a_tool_that_hangs_is_killed_with_everything_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $! >> {pids}; echo $$ >> {pids}; wait"
    before = psutil.Process().children()
    with pytest.raises(ToolTimedOut, match=r"no answer within 0\.5 s"):
        ask(["/bin/sh", "-c", script], 0.5)
    assert_gone([int(pid) for pid in pids.read_text().split()])
    assert psutil.Process().children() == before


def test_a_trials_own_variables_do_not_reach_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_PRELOAD", "PYTHONPATH", "GIT_DIR"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("KEPT", "yes")
    lines = ask(["/usr/bin/env"], 30, {"GIT_OPTIONAL_LOCKS": "0"}).splitlines()
    assert {"KEPT=yes", "LC_ALL=C", "GIT_OPTIONAL_LOCKS=0"} <= set(lines)
    assert not [line for line in lines if line.endswith("=/nowhere")]
    assert os.environ["GIT_DIR"] == "/nowhere"


def assert_gone(pids: list[int]) -> None:
    """The processes end, or are zombies that their new parent has not yet reaped."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
