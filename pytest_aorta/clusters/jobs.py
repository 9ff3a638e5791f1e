"""Jobs as they are kept beside the recipe: a folder for each submission, with script, plan, number and states."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from pytest_aorta.trials.conversion import identifier
from pytest_aorta.workspace.atomic import write_json, write_text

#: Of the index, the folder with all jobs.
JOBS = "jobs"


class Task(BaseModel):
    """What one job, or one task of an array, works on: units of an action."""

    model_config = ConfigDict(frozen=True)

    units: tuple[str, ...]


class Plan(BaseModel):
    """What a submission is for; ``plan.json``, which is there before the scheduler is asked.

    Attributes:
        name: of the job in the scheduler, which no other job has.
        cluster, scheduler: where.
        action: of the recipe.
        recipe: its file.
        tasks: several are an array.
        created: seconds since 1970.
    """

    model_config = ConfigDict(frozen=True)

    version: int = 1
    name: str
    cluster: str
    scheduler: str
    action: str
    recipe: str
    tasks: tuple[Task, ...]
    created: float = Field(default_factory=time.time)


class TaskState(BaseModel):
    """What a scheduler says of a task.

    Attributes:
        state: ``PENDING``, ``RUNNING``, ``TIMEOUT``, ... as SLURM has them.
        reason: why it waits, or has ended so.
        over: whether it has ended and will not be started again.
    """

    model_config = ConfigDict(frozen=True)

    state: str
    reason: str = ""
    over: bool = False


class States(BaseModel):
    """``state.json``: the number of a job, ``None`` as long as it is not known, and the states of its tasks."""

    model_config = ConfigDict(frozen=True)

    number: str | None = None
    refused: str | None = None
    tasks: Mapping[int, TaskState] = Field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A submission.

    Attributes:
        folder: with all that is known of it.
        plan: what it is for.
        states: what is known of it.
    """

    folder: Path
    plan: Plan
    states: States

    @property
    def is_open(self) -> bool:
        """Whether any of its tasks may still run."""
        return self.states.refused is None and not all(self.is_over(task) for task in range(len(self.plan.tasks)))

    def is_over(self, task: int) -> bool:
        """Whether a task has ended."""
        return task in self.states.tasks and self.states.tasks[task].over

    def state(self, task: int) -> TaskState:
        """What is known of a task."""
        if self.states.refused is not None:
            return TaskState(state="REFUSED", reason=self.states.refused, over=True)
        unknown = "SUBMITTED" if self.states.number is not None else "UNCONFIRMED"
        return self.states.tasks.get(task, TaskState(state=unknown))

    def identity(self, task: int) -> str:
        """The number of a task as SLURM has it, ``12`` or ``12_3``; the name where no number is known."""
        number = self.states.number or self.plan.name
        return f"{number}_{task}" if len(self.plan.tasks) > 1 else number

    @cached_property
    def outputs(self) -> Sequence[Path]:
        """The files with what its tasks print."""
        return [self.folder / f"output-{task}.txt" for task in range(len(self.plan.tasks))]

    def with_states(self, states: States) -> Job:
        """The same with other states, which are kept on disk.

        Raises:
            OSError: they cannot be.
        """
        write_json(self.folder / "state.json", states.model_dump(mode="json"))
        return Job(self.folder, self.plan, states)


def job_name(action: str, units: Sequence[str]) -> str:
    """``matrix-local-none-0+7.3f2a91c4``: action, first unit, how many more; no other job has it."""
    more = f"+{len(units) - 1}" if len(units) > 1 else ""
    first = units[0].replace("/", "-") if units[0] else "all"
    return f"{identifier(action)[:60]}-{identifier(first)[:60]}{more}.{uuid.uuid4().hex[:12]}"


def job_folder(plan: Plan) -> Path:
    """The folder of a job in the index."""
    return Path(JOBS, plan.name)


def create_job(index: Path, plan: Plan, files: Mapping[str, str]) -> Job:
    """Write the folder of a submission; it is on disk when this returns.

    Raises:
        OSError: it cannot be written.
    """
    folder = index / job_folder(plan)
    folder.mkdir(parents=True)
    for name, text in files.items():
        write_text(folder / name, text)
    write_text(folder / "plan.json", plan.model_dump_json(indent=1) + "\n")
    fd = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return Job(folder, plan, States())


def read_job(folder: Path) -> Job | None:
    """The job in a folder; ``None`` where it is none, or of a later version."""
    with contextlib.suppress(OSError, ValueError):
        plan = Plan.model_validate_json((folder / "plan.json").read_bytes())
        try:
            states = States.model_validate_json((folder / "state.json").read_bytes())
        except FileNotFoundError:
            states = States()
        return Job(folder, plan, states)
    return None


def read_jobs(index: Path, *, only_open: bool = False) -> list[Job]:
    """All jobs, in the order of their creation.

    ``only_open``: those that have not ended. Of a job that has, there is a file ``over`` that says so in no time.
    """
    try:
        folders = [folder for folder in (index / JOBS).iterdir() if not (only_open and (folder / "over").exists())]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [job for folder in folders if (job := read_job(folder)) is not None and (job.is_open or not only_open)]
    return sorted(found, key=lambda job: (job.plan.created, job.plan.name))


def submitted_units(jobs: Iterable[Job]) -> dict[str, dict[str, str]]:
    """Action to unit to ``CLUSTER/ID`` of the job that it is part of, of tasks that have not ended."""
    found: dict[str, dict[str, str]] = {}
    for job in jobs:
        for number, task in enumerate(job.plan.tasks if job.is_open else ()):
            if not job.is_over(number):
                place = f"{job.plan.cluster}/{job.identity(number)}"
                found.setdefault(job.plan.action, {}).update(dict.fromkeys(task.units, place))
    return found


def started_units(job: Job, task: int) -> Iterator[str]:
    """The units that a task has started, once for each time; a name that is torn at the end is left out."""
    with contextlib.suppress(OSError):
        text = (job.folder / f"started-{task}").read_text(encoding="utf-8", errors="replace")
        yield from (line for line in text.split("\n")[:-1] if line)


def command_statuses(job: Job, task: int) -> dict[int, int]:
    """Exit statuses of the commands that a task has run, by their numbers."""
    found = {}
    with contextlib.suppress(OSError):
        for line in (job.folder / f"status-{task}").read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                number, status = map(int, line.split())
                found[number] = status
    return found
