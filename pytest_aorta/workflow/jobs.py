"""Submitted jobs and their ends.

Each submission has a folder beside the recipe, ``.aorta/jobs/NAME``, with ``job.json`` and the script. The folder is
on disk before the scheduler is asked, and the scheduler knows the job by the same name, which no other has: so an
answer that was lost can be looked up, and nothing is submitted twice.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, Field, PrivateAttr

from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.clusters import Configuration
from pytest_aorta.workflow.recipe import Recipe
from pytest_aorta.workflow.schedulers import GONE, scheduler_of
from pytest_aorta.workflow.slurm import TaskState
from pytest_aorta.workspace.atomic import locked, write_text

#: The folder with all jobs, in the folder of the index.
JOBS = "jobs"

#: Variables in a job: its folder, and which task of it this is.
JOB_VARIABLE, TASK_VARIABLE = "AORTA_JOB", "AORTA_JOB_TASK"

#: Seconds that the number of a job may take from the scheduler to the disk.
_NUMBER_WITHIN = 300.0


def log_of(task: int) -> str:
    """The log of a task, in the folder of its job."""
    return f"task-{task}.log"


class JobTask(BaseModel):
    """The units of a job, or of one task of an array, and the last state that the scheduler reported.

    ``keys``: for commands, the version of each unit, see ``Project.key_of``.
    """

    units: tuple[str, ...]
    keys: tuple[str, ...] = ()
    state: TaskState | None = None

    @property
    def is_over(self) -> bool:
        return self.state is not None and self.state.over


class Job(BaseModel):
    """A submission.

    ``name``: of the job in the scheduler, which no other job has. ``number``: that the scheduler has given it, as soon
    as it is known. ``refused``: why the scheduler does not have it. Several tasks are an array. ``printed``: where what
    they print goes, from the folder of the recipe, with SLURM's patterns; by default, to their folder.
    """

    version: int = 1
    name: str
    cluster: str
    scheduler: str
    action: str
    recipe: str
    tasks: list[JobTask]
    created: float = Field(default_factory=time.time)
    number: str | None = None
    refused: str | None = None
    printed: str | None = None
    _folder: Path | None = PrivateAttr(None)  # where it was found: a project may be mounted elsewhere, or be moved

    @property
    def folder(self) -> Path:
        return self._folder or Path(self.recipe).parent / ".aorta" / JOBS / self.name

    @property
    def is_open(self) -> bool:
        return self.refused is None and not all(task.is_over for task in self.tasks)

    def output(self, task: int) -> Path:
        if self.printed is None:
            return self.folder / f"output-{task}.txt"
        known = {"%j": self.identity(task), "%A": self.number or "", "%a": str(task), "%x": self.name}
        return self.folder.parents[2] / re.sub("%[jAax]", lambda match: known[match[0]], self.printed)

    def tasks_of(self, action: str, unit: str) -> list[int]:
        """The tasks that work on a unit of an action."""
        return [number for number, task in enumerate(self.tasks) if self.action == action and unit in task.units]

    def state(self, task: int) -> TaskState:
        if self.refused is not None:
            return TaskState(state="REFUSED", reason=self.refused, over=True)
        unknown = "SUBMITTED" if self.number is not None else "UNCONFIRMED"
        return self.tasks[task].state or TaskState(state=unknown)

    def identity(self, task: int) -> str:
        """SLURM's number of a task, ``12`` or ``12_3``; the job's name while the number is unknown."""
        number = self.number or self.name
        return f"{number}_{task}" if len(self.tasks) > 1 else number

    def save(self) -> None:
        """Write ``job.json``, and an empty file ``over`` once all tasks have ended. Raises ``OSError``."""
        write_text(self.folder / "job.json", self.model_dump_json(indent=1) + "\n")
        if not self.is_open:
            (self.folder / "over").touch()

    def forbid(self, tasks: Iterable[int] | None = None) -> None:
        """Make these tasks (default: all) exit at once if they start later."""
        for task in range(len(self.tasks)) if tasks is None else tasks:
            (self.folder / f"over-{task}").touch()

    def noted(self, word: str, task: int) -> list[str]:
        """The rest of each line in the log of a task that begins with ``word``.

        ``started`` and a trial; ``began``, the number of a command, and a host; ``status`` of one; ``stopped``.
        """
        with contextlib.suppress(OSError):
            text = (self.folder / log_of(task)).read_text(encoding="utf-8", errors="replace")
            lines = (line.partition(" ") for line in text.split("\n")[:-1])  # whole ones
            return [rest for first, _, rest in lines if first == word]
        return []

    def has_ended_by_itself(self, task: int) -> bool:
        """Whether no command of a task was interrupted: the last one ended, and nobody asked the task to stop."""
        began = self.noted("began", task)
        has_ended = not began or int(began[-1].partition(" ")[0]) in self.command_statuses(task)
        return has_ended and not self.noted("stopped", task)

    def command_statuses(self, task: int) -> dict[int, int]:
        statuses = {}
        for line in self.noted("status", task):
            with contextlib.suppress(ValueError):
                number, status = map(int, line.split())
                statuses[number] = status
        return statuses


def read_job(folder: Path) -> Job | None:
    """The job in a folder; ``None`` for other folders and for later versions of the format."""
    with contextlib.suppress(OSError, ValueError):
        job = Job.model_validate_json((folder / "job.json").read_bytes())
        job._folder = folder
        return job
    return None


def read_jobs(index: Path, *, only_open: bool = False) -> list[Job]:
    """All jobs, or only open ones, oldest first."""
    try:
        folders = [folder for folder in (index / JOBS).iterdir() if not (only_open and (folder / "over").exists())]
    except (FileNotFoundError, NotADirectoryError):
        return []
    jobs = [job for folder in folders if (job := read_job(folder)) is not None and (job.is_open or not only_open)]
    return sorted(jobs, key=lambda job: (job.created, job.name))


#: States in which SLURM has ended a job, by what ``retry`` in a recipe calls them.
_REASONS = {
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "PREEMPTED"), "infrastructure"),
    "OUT_OF_MEMORY": "oom",
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), "timeout"),
}


def losses(index: Path, action: str, since: float = 0) -> dict[str, list[str]]:
    """For each unit of an action, how its ended jobs were lost, oldest first: ``oom``, ...; empty for none."""
    lost: dict[str, list[str]] = {}
    for job in read_jobs(index):
        for number, task in enumerate(job.tasks if job.action == action and job.created >= since else ()):
            if task.is_over or job.refused is not None:
                for unit in task.units:
                    lost.setdefault(unit, []).append(_REASONS.get(job.state(number).state, ""))
    return lost


#: Settles a task that has ended: called once for each, before it counts as ended.
Settle = Callable[[Job, int, TaskState], None]


def reconcile(
    recipe: Recipe, settle: Settle, cluster: str | None = None, *, is_submitting: bool = False
) -> tuple[list[Job], list[str]]:
    """Update the states of open jobs from their schedulers; jobs of other clusters keep theirs.

    Call it before reading the index: a job that has left the queue has written its completions.

    Args:
        settle: called with each ended task, to record its results.
        cluster: ask only this one; by default, all that may answer here.
        is_submitting: the caller holds the submission lock, so no other process submits.

    Returns:
        The jobs that were open, and why some of their states may be out of date.
    """
    if not read_jobs(recipe.index, only_open=True):
        return [], []
    clusters = Configuration.of_project(recipe.root).clusters
    problems: list[str] = []
    with locked(recipe.index):
        jobs = read_jobs(recipe.index, only_open=True)
        # Those of this name, else all that may answer here.
        known = {each.name: each.identify for each in reversed(clusters)}
        elsewhere = {name for name, it in known.items() if it.by_environment and not it.matches()}
        here = [job for job in jobs if job.scheduler != "bash" and job.cluster not in elsewhere]
        if cluster is not None:
            here = [job for job in jobs if job.scheduler != "bash" and job.cluster == cluster]
        latest = time.time() if is_submitting else time.time() - _NUMBER_WITHIN
        for name in dict.fromkeys(job.scheduler for job in here):
            own = [job for job in here if job.scheduler == name]
            lost = [job for job in own if job.number is None and job.created <= latest]
            try:
                scheduler = scheduler_of(name)
                numbers = scheduler.find({job.name for job in lost}) if lost else {}
                for job in lost:
                    job.number = numbers.get(job.name)
                    if job.number is None:
                        job.forbid()  # should it come after all, it does nothing
                        job.refused = "the scheduler does not have it"
                    job.save()
                tasks = [(job, number) for job in own if job.number is not None for number in range(len(job.tasks))]
                states = scheduler.states([job.identity(task) for job, task in tasks if not job.tasks[task].is_over])
            except RequestError as error:
                open_tasks = sum(not task.is_over for job in own for task in job.tasks)
                problems.append(f"{error}; the states of {open_tasks} submitted jobs are those that were last known")
            else:
                for job in own:
                    if job.number is not None:
                        _update(job, states, settle, problems)
    return jobs, problems


def _update(job: Job, states: Mapping[str, TaskState], settle: Settle, problems: list[str]) -> None:
    before = job.model_dump()
    for number, task in enumerate(job.tasks):
        if task.is_over:
            continue
        state = states.get(job.identity(number))
        if state is None:
            state = TaskState(state="UNKNOWN", reason="no scheduler knows it any more", over=True)
        if state.state == "FAILED" and job.noted("stopped", number):
            state = TaskState(state="TIMEOUT", reason="ended in order before its time limit", over=True)
        if state == GONE and not job.has_ended_by_itself(number):
            state = GONE.model_copy(update={"state": "CANCELLED"})
        if state.over:
            try:
                job.forbid([number])
                settle(job, number, state)
            except (OSError, RequestError) as error:  # it is tried again the next time
                problems.append(f"job {job.identity(number)} has ended ({state.state}), but: {error}")
                state = state.model_copy(update={"over": False})
        task.state = state
    if job.model_dump() != before:
        job.save()
