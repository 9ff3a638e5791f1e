"""The last step outlives the process that has reported it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.trials.lifecycle import StepCounter, read_steps, step_file


def test_the_last_step_is_there_when_the_process_was_killed(tmp_path: Path) -> None:
    path = step_file(tmp_path, 3)
    child = os.fork()
    if child == 0:
        counter = StepCounter(path)
        for step in range(637):
            counter.set(step + 1, 1000)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

    assert read_steps(path) == {"type": "progress", "step": 637, "total": 1000}


@pytest.mark.parametrize(("step", "total"), [(3.0, 10), ("3", 10), (2**70, 10), (None, 10), (3, 10.5)])
def test_what_is_no_whole_number_changes_nothing(tmp_path: Path, step: Any, total: Any) -> None:
    counter = StepCounter(tmp_path / "steps")
    counter.set(step, total)
    assert read_steps(tmp_path / "steps") is None
    counter.set(2, 10)
    counter.set(step, total)

    assert read_steps(tmp_path / "steps") == {"type": "progress", "step": 2, "total": 10}


def test_where_no_file_can_be_written_a_step_does_no_harm(tmp_path: Path) -> None:
    counter = StepCounter(tmp_path / "gone" / "steps")

    counter.set(1, 10)
    counter.set(2, 10)

    assert read_steps(tmp_path / "gone" / "steps") is None
