"""What the index says of submitted jobs, after a process was killed while it noted their ends."""

from __future__ import annotations

from pathlib import Path

from pytest_aorta.clusters.jobs import Job, Plan, States, Task, TaskState, create_job
from pytest_aorta.clusters.reconciliation import add_submitted, reconcile
from pytest_aorta.workspace.index.submitted import read_submitted


def test_units_of_jobs_that_have_ended_do_not_stay_submitted(tmp_path: Path) -> None:
    index = tmp_path / ".aorta"
    plan = Plan(name="a", cluster="slurm", scheduler="slurm", action="one", recipe="r", tasks=(Task(units=("dir0",)),))
    job = create_job(index, plan, {}).with_states(States(number="7"))
    add_submitted(index, job)
    assert read_submitted(index) == {"one": {"dir0": "slurm/7"}}

    job.with_states(States(number="7", tasks={0: TaskState(state="COMPLETED", over=True)}))
    (job.folder / "over").touch()  # here it is killed
    settled: list[Job] = []
    found = reconcile(index, tmp_path, lambda job, number, state: settled.append(job), {})

    assert (list(found.jobs), list(found.problems), settled) == ([], [], [])
    assert read_submitted(index) == {}
