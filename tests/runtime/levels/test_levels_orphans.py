"""What tasks leave running is adopted by their slot, lives as long as it, and is collected when it ends before."""

from __future__ import annotations

import subprocess
from typing import Any

import levels_tasks
import psutil
import pytest
from levels_stage import no_torch as no_torch
from levels_stage import run_sub

from pytest_aorta.runtime import Worker, leaf


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many are few."""
    monkeypatch.setattr(leaf, "MANY", 4)


def leave(args: Any) -> int:
    """Leave a process behind that is about to end; how many children of this one have ended and were not collected."""
    leaf.MANY = 4  # here as well
    subprocess.run(["sh", "-c", "sleep 0.05 &"], check=True)
    children = psutil.Process().children()
    return sum(child.status() == psutil.STATUS_ZOMBIE for child in children)


def test_processes_that_tasks_leave_behind_and_that_have_ended_do_not_pile_up() -> None:
    with Worker(3, num_sub_workers=1) as worker:
        handle = worker.register(leave)
        ended = [run_sub(worker, handle).payload for _ in range(60)]
    assert max(ended) < 30


def test_exit_statuses_of_processes_that_a_later_task_waits_for_are_not_lost() -> None:
    codes = list(range(10, 20))
    with Worker(3, num_sub_workers=1) as worker:
        start, churn = worker.register(levels_tasks.start_and_keep), worker.register(leave)
        run_sub(worker, start, *codes)
        for _ in range(30):
            run_sub(worker, churn)
        assert run_sub(worker, worker.register(levels_tasks.wait_for_kept)).payload == codes
