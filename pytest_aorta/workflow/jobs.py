"""Jobs: groups of units into scripts, these to a scheduler, and what has become of them.

Each submission has a folder beside the recipe, ``.aorta/jobs/NAME``, with ``job.json`` and the script. The folder is
on disk before the scheduler is asked, and the scheduler knows the job by the same name, which no other has: so an
answer that was lost can be looked up, and nothing is submitted twice.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel, Field, PrivateAttr

from pytest_aorta.common.texts import identifier
from pytest_aorta.settings import RequestError
from pytest_aorta.workflow import slurm
from pytest_aorta.workflow.clusters import Cluster, Configuration, Launcher, launcher_prefix
from pytest_aorta.workflow.groups import action_variables
from pytest_aorta.workflow.recipe import Action, Cost, Recipe, SubmitOptions
from pytest_aorta.workflow.scripts import log_of, nodes_of, sbatch_options, script_text
from pytest_aorta.workflow.slurm import TaskState
from pytest_aorta.workspace.atomic import locked, write_text

#: Of the index, the folder with all jobs.
JOBS = "jobs"

#: Seconds that the number of a job may take from the scheduler to the disk.
_NUMBER_WITHIN = 300.0


class Task(BaseModel):
    """What one job, or one task of an array, works on, and what the scheduler has said of it.

    ``keys``: of commands, what a completion of each unit is of, see ``Project.key_of``.
    """

    units: tuple[str, ...]
    keys: tuple[str, ...] = ()
    state: TaskState | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state is not None and self.state.over


class Job(BaseModel):
    """A submission.

    Attributes:
        name: of the job in the scheduler, which no other job has.
        cluster, scheduler: where.
        action: of the recipe, which is in the file ``recipe``.
        tasks: several are an array.
        created: seconds since 1970.
        number: that the scheduler has given it, ``None`` as long as it is not known.
        refused: why the scheduler does not have it.
    """

    version: int = 1
    name: str
    cluster: str
    scheduler: str
    action: str
    recipe: str
    tasks: list[Task]
    created: float = Field(default_factory=time.time)
    number: str | None = None
    refused: str | None = None
    _folder: Path | None = PrivateAttr(None)  # where it was found: a project may be mounted elsewhere, or be moved

    @property
    def folder(self) -> Path:
        """With all that is known of it."""
        return self._folder or Path(self.recipe).parent / ".aorta" / JOBS / self.name

    @property
    def is_open(self) -> bool:
        return self.refused is None and not all(task.is_over for task in self.tasks)

    def state(self, task: int) -> TaskState:
        """What is known of a task."""
        if self.refused is not None:
            return TaskState(state="REFUSED", reason=self.refused, over=True)
        unknown = "SUBMITTED" if self.number is not None else "UNCONFIRMED"
        return self.tasks[task].state or TaskState(state=unknown)

    def identity(self, task: int) -> str:
        """The number of a task as SLURM has it, ``12`` or ``12_3``; the name where no number is known."""
        number = self.number or self.name
        return f"{number}_{task}" if len(self.tasks) > 1 else number

    def save(self) -> None:
        """Write it; once it has ended, a file ``over`` says so to those who look for open jobs. Raises ``OSError``."""
        write_text(self.folder / "job.json", self.model_dump_json(indent=1) + "\n")
        if not self.is_open:
            (self.folder / "over").touch()

    def forbid(self, tasks: Iterable[int] | None = None) -> None:
        """Have tasks, all by default, do nothing if they begin from now on."""
        for task in range(len(self.tasks)) if tasks is None else tasks:
            (self.folder / f"over-{task}").touch()

    def noted(self, word: str, task: int) -> list[str]:
        """What follows a word in the log of a task: ``started`` and a unit, ``status`` of a command, ``stopped``."""
        with contextlib.suppress(OSError):
            text = (self.folder / log_of(task)).read_text(encoding="utf-8", errors="replace")
            lines = (line.partition(" ") for line in text.split("\n")[:-1])  # whole ones
            return [rest for first, _, rest in lines if first == word]
        return []

    def command_statuses(self, task: int) -> dict[int, int]:
        found = {}
        for line in self.noted("status", task):
            with contextlib.suppress(ValueError):
                number, status = map(int, line.split())
                found[number] = status
        return found


def read_job(folder: Path) -> Job | None:
    """The job in a folder; ``None`` where it is none, or of a later version."""
    with contextlib.suppress(OSError, ValueError):
        job = Job.model_validate_json((folder / "job.json").read_bytes())
        job._folder = folder
        return job
    return None


def read_jobs(index: Path, *, only_open: bool = False) -> list[Job]:
    """All jobs, or those that have not ended, in the order of their creation."""
    try:
        folders = [folder for folder in (index / JOBS).iterdir() if not (only_open and (folder / "over").exists())]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [job for folder in folders if (job := read_job(folder)) is not None and (job.is_open or not only_open)]
    return sorted(found, key=lambda job: (job.created, job.name))


def submitted_units(jobs: Iterable[Job]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for job in jobs:
        for number, task in enumerate(job.tasks if job.is_open else ()):
            if not task.is_over:
                place = f"{job.cluster}/{job.identity(number)}"
                found.setdefault(job.action, {}).update(dict.fromkeys(task.units, place))
    return found


#: States in which SLURM has ended a job, by what ``retry`` in a recipe calls them.
_REASONS = {
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "PREEMPTED"), "infrastructure"),
    "OUT_OF_MEMORY": "oom",
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), "timeout"),
}


def losses(index: Path, action: str, since: float = 0) -> dict[str, list[str]]:
    """By unit, how the jobs of an action that have ended with it have, in their order: ``oom``; empty for no loss."""
    found: dict[str, list[str]] = {}
    for job in read_jobs(index):
        for number, task in enumerate(job.tasks if job.action == action and job.created >= since else ()):
            if task.is_over or job.refused is not None:
                for unit in task.units:
                    found.setdefault(unit, []).append(_REASONS.get(job.state(number).state, ""))
    return found


@dataclass(frozen=True)
class Target:
    """Where jobs of a recipe go, with what launchers say there."""

    recipe: Recipe
    cluster: Cluster
    launchers: Mapping[str, Launcher]


@dataclass(frozen=True)
class PlannedJob:
    """A job that may be submitted, with its script and the files that this needs, its cost, and warnings."""

    job: Job
    script: str
    files: Mapping[str, str]
    cost: Cost
    warnings: Sequence[str]
    has_account: bool


#: Shell lines, or files, of a task: of its units, and its number.
CommandsOf = Callable[[Sequence[str], Path, int], Sequence[str]]
FilesOf = Callable[[Sequence[str], int], Mapping[str, str]]


def plan_jobs(
    target: Target,
    action: Action,
    groups: Sequence[Sequence[str]],
    commands_of: CommandsOf,
    files_of: FilesOf = lambda units, task: {},
) -> Iterator[PlannedJob]:
    """The jobs of an action; groups that follow each other and are of one size share an array.

    ``commands_of`` gives the shell lines of a task, by its units, the folder of the job and its number; ``files_of``
    gives the files that these need in the folder. Raises ``RecipeError`` where no partition takes them.
    """
    largest = target.cluster.maximum_array_size if target.cluster.scheduler == "slurm" else 1
    for _, same in groupby(groups, len):
        equal = [*same]
        for start in range(0, len(equal), largest):
            yield _planned(target, action, equal[start : start + largest], commands_of, files_of)


def _planned(
    target: Target, action: Action, groups: Sequence[Sequence[str]], commands_of: CommandsOf, files_of: FilesOf
) -> PlannedJob:
    recipe, cluster, size = target.recipe, target.cluster, len(groups[0])
    table = action.table
    own = table.submit_options.get(cluster.name, SubmitOptions())
    partition = cluster.choose_partition(own.partition, table.resources, size)
    job = Job(
        name=job_name(action.name, groups[0]),
        cluster=cluster.name,
        scheduler=cluster.scheduler,
        action=action.name,
        recipe=str(recipe.file),
        tasks=[Task(units=tuple(units)) for units in groups],
    )
    folder = job.folder.relative_to(recipe.root)
    text = script_text(
        [*sbatch_options(action, cluster, partition, size)] if cluster.scheduler == "slurm" else None,
        name=job.name,
        root=recipe.root,
        folder=folder,
        variables=action_variables(action.name, table.resources, size, recipe.workspace.path, cluster.name),
        setup=own.setup,
        tasks=[commands_of(units, recipe.root / folder, number) for number, units in enumerate(groups)],
        note=[sys.executable, "-m", "pytest_aorta", "job-ended"],
        throttle=cluster.array_throttle,
        runs_trials=action.is_matrix,
    )
    files = {name: text for number, units in enumerate(groups) for name, text in files_of(units, number).items()}
    warnings = [*partition.warnings(table.resources, size)] if partition is not None else []
    cost = table.resources.cost(size) * len(groups)
    return PlannedJob(job, text, {**files, "script.sh": text}, cost, warnings, own.account is not None)


def job_name(action: str, units: Sequence[str]) -> str:
    more = f"+{len(units) - 1}" if len(units) > 1 else ""
    first = units[0].replace("/", "-") if units[0] else "all"
    return f"{identifier(action)[:60]}-{identifier(first)[:60]}{more}.{uuid.uuid4().hex[:12]}"


def command_lines(target: Target, action: Action, lines: Sequence[str], units: int) -> list[str]:
    """Commands of an action with what its launchers put before them; ``units``: of the job."""
    prefix = launcher_prefix(action, units, target.launchers)
    return [prefix + line for line in lines]


def pytest_line(action: Action, start: Path, arguments: Sequence[str], items: Path) -> str:
    """The command that runs trials: on each node of the job, where they need several.

    ``items``: a file with node ids; ``start``: the folder in which pytest is started.
    """
    nodes, distributed = nodes_of(action), action.table.distributed
    step = []
    if nodes > 1:  # each of them has to know, before it has read the recipe, that it is one of several
        arguments = [*arguments, *(f"--aorta-elastic={name}={value}" for name, value in distributed.elastic.items())]
        arguments += [f"--aorta-nproc={distributed.nproc}"] if distributed.nproc is not None else []
        step = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none"]
    words = [*step, sys.executable, "-m", "pytest", *arguments, f"@{items}"]
    return f"cd -- {shlex.quote(str(start))} && exec {shlex.join(words)}"


def submit(target: Target, planned: PlannedJob) -> Job:
    """Submit a job, and keep what is known of it; with the scheduler ``bash`` it has ended when this returns.

    Raises:
        SchedulerError: the scheduler has refused it.
        LostAnswer: whether it has it is not known; that is found out the next time.
        OSError: the folder of the job cannot be written; nothing was submitted.
    """
    job = planned.job.model_copy(update={"created": time.time()})
    job.folder.mkdir(parents=True)
    for name, text in planned.files.items():
        write_text(job.folder / name, text)
    job.save()
    fd = os.open(job.folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    if target.cluster.scheduler == "bash":
        _run_here(job, target.recipe.root)
        return job
    try:
        job.number = slurm.sbatch(job.folder / "script.sh", target.recipe.root, planned.has_account)
    except slurm.LostAnswer as lost:
        found: Mapping[str, str] = {}
        with contextlib.suppress(slurm.SchedulerError):
            found = slurm.numbers_of({job.name}, in_accounting=False)
        if job.name not in found:
            raise lost
        job.number = found[job.name]
    except slurm.SchedulerError as error:
        job.forbid()
        job.refused = str(error)
        job.save()
        raise
    job.save()
    return job


def _run_here(job: Job, root: Path) -> None:
    process = subprocess.Popen(
        ["/bin/bash", str(job.folder / "script.sh")], cwd=root, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        reason = f"exit status {process.returncode}" if process.returncode else ""
        job.number = str(process.pid)
        job.tasks[0].state = TaskState(state="FAILED" if reason else "COMPLETED", reason=reason, over=True)
        job.save()


@contextlib.contextmanager
def interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Within, the first SIGINT or SIGTERM is only noted: gives whether there was one. The second one interrupts."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt
        with contextlib.suppress(OSError):
            os.write(2, b"waiting for the answer to the last job; Ctrl-C once more leaves at once\n")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    earlier: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


#: Settles a task that has ended: called once for each, before it counts as ended.
Settle = Callable[[Job, int, TaskState], None]


def reconcile(
    recipe: Recipe,
    settle: Settle,
    cluster: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    is_submitting: bool = False,
) -> tuple[list[Job], list[str]]:
    """Ask the schedulers for the states of the jobs that are open; those of another cluster stay as they are.

    ``cluster``: the one whose jobs are asked for, by default all that may answer here.

    Call it before the index is read: what a job has completed is on disk when it is no longer in the queue.
    """
    if not read_jobs(recipe.index, only_open=True):
        return [], []
    clusters = Configuration.of_project(recipe.root, environ).clusters
    problems: list[str] = []
    with locked(recipe.index):
        jobs = read_jobs(recipe.index, only_open=True)
        here = [
            job
            for job in jobs
            if job.scheduler == "slurm"
            and (_answers_here(job, clusters, environ) if cluster is None else job.cluster == cluster)
        ]
        try:
            latest = time.time() if is_submitting else time.time() - _NUMBER_WITHIN
            _confirm([job for job in here if job.number is None and job.created <= latest])
            states = slurm.states([job.number for job in here if job.number is not None])
        except RequestError as error:
            open_tasks = sum(not task.is_over for job in here for task in job.tasks)
            problems.append(f"{error}; the states of {open_tasks} submitted jobs are those that were last known")
        else:
            for job in here:
                if job.number is not None:
                    _update(job, states, settle, problems)
    return jobs, problems


def _answers_here(job: Job, clusters: Sequence[Cluster], environ: Mapping[str, str]) -> bool:
    cluster = next((each for each in clusters if each.name == job.cluster), None)
    return cluster is None or cluster.identify.by_environment is None or cluster.identify.matches(environ)


def _confirm(jobs: Sequence[Job]) -> None:
    found = slurm.numbers_of({job.name for job in jobs}) if jobs else {}
    for job in jobs:
        job.number = found.get(job.name)
        if job.number is None:
            job.forbid()  # should it come after all, it does nothing
            job.refused = "the scheduler does not have it"
        job.save()


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
