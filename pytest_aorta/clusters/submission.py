"""Groups of units into jobs with their scripts, and these into the hands of a scheduler."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType

from pytest_aorta.clusters import slurm
from pytest_aorta.clusters.jobs import Job, Plan, States, Task, TaskState, create_job, job_folder, job_name, read_jobs
from pytest_aorta.clusters.launchers import launcher_prefix
from pytest_aorta.clusters.partitions import choose_partition
from pytest_aorta.clusters.reconciliation import add_submitted, forbid, write_submitted
from pytest_aorta.clusters.sbatch_options import nodes_of, sbatch_options
from pytest_aorta.clusters.scripts import JobScript
from pytest_aorta.clusters.tables import Cluster, Launcher
from pytest_aorta.workflow.actions import Action, Recipe
from pytest_aorta.workflow.environment import action_variables
from pytest_aorta.workflow.recipe import SubmitOptions
from pytest_aorta.workflow.resources import Cost
from pytest_aorta.workspace.atomic import locked

#: The shell lines that a task runs: of its units, in the folder of the job, by the number of the task.
CommandsOf = Callable[[Sequence[str], Path, int], Sequence[str]]


@dataclass(frozen=True)
class PlannedJob:
    """A job that may be submitted: an array where it has several tasks.

    Attributes:
        plan: what it is for.
        script: for the scheduler.
        files: that the script needs, by name.
        cost: what it costs at most.
        warnings: of its partition.
        has_account: whether the script says which account pays.
    """

    plan: Plan
    script: str
    files: Mapping[str, str]
    cost: Cost
    warnings: Sequence[str]
    has_account: bool


@dataclass(frozen=True)
class Target:
    """Where jobs of a recipe go.

    Attributes:
        recipe: whose actions they run.
        cluster: with its partitions.
        launchers: what they say there.
    """

    recipe: Recipe
    cluster: Cluster
    launchers: Mapping[str, Launcher]


def plan_jobs(
    target: Target,
    action: Action,
    groups: Sequence[Sequence[str]],
    commands_of: CommandsOf,
    files_of: Callable[[Sequence[str], int], Mapping[str, str]] = lambda units, task: {},
) -> Iterator[PlannedJob]:
    """The jobs of an action; groups that follow each other and are of one size share an array.

    Args:
        target: where.
        action: of the recipe.
        groups: of units.
        commands_of: what is run on a group.
        files_of: what the folder of the job has to have for that.

    Raises:
        RecipeError: no partition takes them, or an option is not valid.
    """
    largest = target.cluster.maximum_array_size if target.cluster.scheduler == "slurm" else 1
    for _, same in groupby(groups, len):
        equal = [*same]
        for start in range(0, len(equal), largest):
            yield _planned(target, action, equal[start : start + largest], commands_of, files_of)


def _planned(
    target: Target,
    action: Action,
    groups: Sequence[Sequence[str]],
    commands_of: CommandsOf,
    files_of: Callable[[Sequence[str], int], Mapping[str, str]],
) -> PlannedJob:
    recipe, cluster, size = target.recipe, target.cluster, len(groups[0])
    own = action.table.submit_options.get(cluster.name, SubmitOptions())
    is_slurm = cluster.scheduler == "slurm"
    choice = choose_partition(cluster, own.partition, action.table.resources, size)
    plan = Plan(
        name=job_name(action.name, groups[0]),
        cluster=cluster.name,
        scheduler=cluster.scheduler,
        action=action.name,
        recipe=str(recipe.file),
        tasks=tuple(Task(units=tuple(units)) for units in groups),
    )
    folder = Path(recipe.index.name) / job_folder(plan)
    script = JobScript(
        options=[*sbatch_options(action, cluster, choice.partition, size)] if is_slurm else [],
        name=plan.name,
        root=recipe.root,
        folder=folder,
        variables=action_variables(action.name, action.table.resources, size, recipe.workspace.path, cluster.name),
        setup=own.setup,
        tasks=[commands_of(units, recipe.root / folder, number) for number, units in enumerate(groups)],
        note=[sys.executable, "-m", "pytest_aorta", "job-ended"],
        throttle=cluster.array_throttle,
        runs_trials=action.is_matrix,
        for_slurm=is_slurm,
    )
    files = {name: text for number, units in enumerate(groups) for name, text in files_of(units, number).items()}
    each = action.table.resources.cost(size)
    cost = Cost(each.cpu_hours * len(groups), each.gpu_hours * len(groups))
    text = script.text()
    return PlannedJob(plan, text, {**files, "script.sh": text}, cost, choice.warnings, own.account is not None)


def command_lines(target: Target, action: Action, lines: Sequence[str], units: int) -> list[str]:
    """Commands of an action with what its launchers put before them; ``units``: of the job."""
    prefix = launcher_prefix(action, units, target.launchers, needs_one=True)
    return [prefix + line for line in lines]


def pytest_line(action: Action, start: Path, arguments: Sequence[str], items: Path) -> str:
    """The command that runs trials: on each node of the job, where they need several.

    Args:
        action: with the workload.
        start: folder that pytest is started in.
        arguments: for pytest.
        items: file with the node ids.
    """
    nodes, distributed = nodes_of(action), action.table.distributed
    if nodes > 1:  # each of them has to know, before it has read the recipe, that it is one of several
        arguments = [*arguments, *(f"--aorta-elastic={name}={value}" for name, value in distributed.elastic.items())]
        arguments += [f"--aorta-nproc={distributed.nproc}"] if distributed.nproc is not None else []
    step = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none"]
    words = [*(step if nodes > 1 else []), sys.executable, "-m", "pytest", *arguments, f"@{items}"]
    return f"cd -- {shlex.quote(str(start))} && exec {shlex.join(words)}"


def submit(target: Target, planned: PlannedJob) -> Job:
    """Submit a job, and keep what is known of it; with the scheduler ``bash`` it has ended when this returns.

    Raises:
        SchedulerError: the scheduler has refused it.
        LostAnswer: whether it has it is not known; that is found out the next time.
        OSError: the index cannot be written; nothing was submitted.
    """
    index = target.recipe.index
    plan = planned.plan.model_copy(update={"created": time.time()})
    job = create_job(index, plan, planned.files)
    add_submitted(index, job)
    if target.cluster.scheduler == "bash":
        return _run_here(job, target.recipe.root)
    try:
        number = slurm.sbatch(job.folder / "script.sh", target.recipe.root, planned.has_account)
    except slurm.LostAnswer as lost:
        found = {}
        with contextlib.suppress(slurm.SchedulerError):
            found = slurm.squeue_names([plan.name])
        if plan.name not in found:
            raise lost
        number = found[plan.name]
    except slurm.SchedulerError as error:
        forbid(job, range(len(plan.tasks)))
        job.with_states(States(refused=str(error)))
        (job.folder / "over").touch()
        with locked(index):
            write_submitted(index, read_jobs(index, only_open=True))
        raise
    job = job.with_states(States(number=number))
    add_submitted(index, job)
    return job


def _run_here(job: Job, root: Path) -> Job:
    """Run a script at once."""
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
        state = "COMPLETED" if process.returncode == 0 else "FAILED"
        reason = f"exit status {process.returncode}" if process.returncode else ""
        job = job.with_states(
            States(number=str(process.pid), tasks={0: TaskState(state=state, reason=reason, over=True)})
        )
        (job.folder / "over").touch()
        with locked(root / job.folder.parents[1]):
            write_submitted(job.folder.parents[1], read_jobs(job.folder.parents[1], only_open=True))
    return job


@contextlib.contextmanager
def interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Within, the first SIGINT or SIGTERM is only noted: gives whether there was one. The second one interrupts.

    Raises:
        KeyboardInterrupt: at the second one.
    """
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
    earlier = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
