"""Jobs of a recipe that end as soon as all of them together have decided."""

from __future__ import annotations

import json
import shutil
import time
from typing import Any

import pytest
from support.projects import short_status
from support.stage import Stage, counts
from support.workloads import SHAKY, shaky_project

from pytest_aorta.workflow.jobs import Job, JobTask
from pytest_aorta.workflow.recipe import read_recipe

RECIPE = """
[[action]]
name = "matrix"
workload = "shaky"
trials = 20
until_decided = true
mitigations = ["none", "fix"]

[[action]]
name = "compare"
each = "cell"
command = "ls {folder} > {folder}/listing"
products = ["listing"]
previous_actions = ["matrix"]
"""

CELLS = ("local-none", "local-fix")


@pytest.fixture(autouse=True)
def shaky(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    shaky_project(stage, monkeypatch, RECIPE)


def submitted(stage: Stage, *rounds: range) -> Job:
    """A job with a task for some rounds each, as ``submit`` leaves it."""
    tasks = [JobTask(units=tuple(f"{cell}/{index}" for index in each for cell in CELLS)) for each in rounds]
    job = Job(
        name=f"matrix-{rounds[0].start}.{time.time_ns()}",
        cluster="slurm",
        scheduler="slurm",
        action="matrix",
        recipe=str(read_recipe(stage.path / "aorta.toml").file),
        tasks=tasks,
        number=str(100 + rounds[0].start),
    )
    job.folder.mkdir(parents=True)
    job.save()
    return job


def run(stage: Stage, job: Job, task: int = 0, *options: str) -> dict[str, int]:
    """What becomes of the trials of a task: what its script runs, as SLURM would."""
    items = [unit.rpartition("/") for unit in job.tasks[task].units]
    names = [f"aorta.toml::matrix[{cell}-{index}]" for cell, _, index in items]
    return counts(stage.run(*names, *options, env={"AORTA_JOB": str(job.folder), "AORTA_JOB_TASK": str(task)}))


def records(stage: Stage) -> int:
    return len(list(stage.path.glob("workspace/matrix/shaky/*/trial_*.json")))


def matrix(stage: Stage) -> dict[str, Any]:
    content = json.loads((stage.path / "workspace/matrix/matrix.json").read_text())
    return {cell["cell"]: cell for cell in content["cells"]}


def forget_decisions(stage: Stage) -> None:
    """As if the job that has decided had been killed: the records alone say it."""
    shutil.rmtree(stage.path / ".aorta/staged")


@pytest.mark.slow
def test_a_job_decides_with_the_trials_of_all(stage: Stage) -> None:
    first = submitted(stage, range(4), range(4, 8))
    later = submitted(stage, range(8, 14), range(14, 20))
    assert run(stage, first, 0) == {"failed": 4, "passed": 4}
    assert run(stage, first, 1) == {"failed": 4, "passed": 4}
    # What the two have decided, neither could have by itself.
    assert matrix(stage)["local-fix"]["verdict"]["kind"] == "fixes"
    assert run(stage, later, 0) == {"skipped": 12}
    assert records(stage) == 16
    # Nor is what was not started taken for lost.
    assert later.noted("started", 0) == []
    assert len(first.noted("started", 0)) == 8
    for job in (first, later):
        (job.folder / "over").touch()
    result = stage.run("-rs", "aorta.toml")
    assert counts(result) == {"failed": 8, "passed": 8 + 2, "skipped": 24}
    result.stdout.fnmatch_lines(["matrix: 1 of 1 cell decided, 24 trials saved*"])
    result.stdout.fnmatch_lines(
        ["SKIPPED [[]12[]] aorta.toml::matrix[[]local-fix[]]: decided: fixes (0 of 8 against 8 of 8)"]
    )
    assert short_status() == {"matrix": [8, 8, 0, 0, 0, 0], "compare": [2, 0, 0, 0, 0, 0]}


@pytest.mark.slow
def test_results_of_other_code_decide_nothing(stage: Stage) -> None:
    run(stage, submitted(stage, range(8)))
    stage.write(work=SHAKY.replace('"FIXED" in', '"FIXED" not in'))
    outcomes = run(stage, submitted(stage, range(8, 12)))
    assert outcomes == {"failed": 4, "passed": 4}
    assert [matrix(stage)[cell]["trials"]["ok"] for cell in CELLS] == [[8, 9, 10, 11], []]


@pytest.mark.slow
def test_a_trial_that_runs_elsewhere_holds_those_after_it_back(stage: Stage) -> None:
    """How long a trial takes depends on how it ends: what is over first is no fair sample."""
    first = submitted(stage, range(10), range(12, 14))
    run(stage, first, 0)
    forget_decisions(stage)
    for cell in CELLS:
        (stage.path / f"workspace/matrix/shaky/{cell}/trial_0.json").unlink()
    assert run(stage, first, 1) == {"failed": 2, "passed": 2}
    # What a job that has ended has left running is lost, and holds nothing back.
    (first.folder / "over").touch()
    assert run(stage, submitted(stage, range(14, 18))) == {"skipped": 8}
