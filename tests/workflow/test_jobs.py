"""What the log of a task says of its end, where the scheduler has forgotten it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aorta.workflow.jobs import JOBS, Job, JobTask, log_of


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", True),
        ("began 0 n0\nstatus 0 1\nbegan 1 n0\nstatus 1 0\n", True),
        ("began 0 n0\n", False),
        ("began 0 n0\nstatus 0 0\nbegan 1 n0\n", False),
        ("began 0 n0\nbegan 0 n1\nstatus 0 0\n", True),
        ("began 0 n0\nstopped\nstatus 0 0\n", False),
    ],
    ids=["not begun", "two commands", "killed", "killed in the second", "started again", "asked to end"],
)
def test_a_task_whose_command_has_no_end_was_ended(tmp_path: Path, log: str, expected: bool) -> None:
    job = Job(
        name="one",
        cluster="it",
        scheduler="psij:pbs",
        action="one",
        recipe=str(tmp_path / "aorta.toml"),
        tasks=[JobTask(units=("a", "b"))],
    )
    folder = tmp_path / ".aorta" / JOBS / "one"
    folder.mkdir(parents=True)
    (folder / log_of(0)).write_text(log)
    assert job.has_ended_by_itself(0) is expected
