"""Submission of a recipe's open units, group by group, as scripts to a scheduler.

Every word of a script that is not the user's own shell text is quoted for the shell.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import re
import shlex
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from itertools import groupby, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_aorta.common.texts import identifier
from pytest_aorta.settings import RequestError
from pytest_aorta.triage import GOALS
from pytest_aorta.workflow import slurm
from pytest_aorta.workflow.clusters import Cluster, Launcher, Partition, launcher_prefix
from pytest_aorta.workflow.finding import RecipeError
from pytest_aorta.workflow.groups import action_variables
from pytest_aorta.workflow.jobs import JOB_VARIABLE, TASK_VARIABLE, Job, JobTask, losses
from pytest_aorta.workflow.project import Project
from pytest_aorta.workflow.recipe import Action, Cost, Recipe, SubmitOptions, nodes_file, shell_commands
from pytest_aorta.workflow.schedulers import scheduler_of
from pytest_aorta.workflow.slurm import Asked, TaskState
from pytest_aorta.workspace.atomic import write_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedJob:
    """A job that may be submitted, with its script and the files that this needs."""

    job: Job
    files: Mapping[str, str]
    cost: Cost
    warnings: Sequence[str]
    asked: Asked

    @property
    def script(self) -> str:
        return self.files["script.sh"]


@dataclass(frozen=True)
class PlannedAction:
    """The jobs of an action, and counts of its other units by kind."""

    action: Action
    jobs: Sequence[PlannedJob]
    others: Counter[str]

    @property
    def count(self) -> int:
        return sum(len(job.job.tasks) for job in self.jobs)


def with_nodes(recipe: Recipe, cluster: Cluster, pattern: str, *, is_dry: bool) -> tuple[Recipe, dict[str, str]]:
    """The recipe with the nodes of its sweeps, new ones last, and the states of nodes that take no jobs."""
    actions, down = list(recipe.actions), dict[str, str]()
    for number, each in enumerate(actions):
        if each.nodes is None or not fnmatchcase(each.name, pattern):
            continue
        if cluster.scheduler not in ("slurm", "bash"):
            raise RequestError(f"action {each.name!r} is for nodes, which only SLURM is asked for")
        table, states = each.table, {platform.node(): "idle"}
        trials = table.trials // max(1, len(each.nodes))
        if cluster.scheduler == "slurm":
            named = table.submit_options.get(cluster.name, SubmitOptions()).partition
            partition = cluster.choose_partition(named, table.resources, trials)
            states = slurm.nodes(None if partition is None else partition.name, table.nodes)
        nodes = tuple(dict.fromkeys([*each.nodes, *(name for name in states if slurm.takes_jobs(states[name]))]))
        if not nodes:
            states_text = ", ".join(f"{name} is {state}" for name, state in states.items()) or "there is none"
            raise RequestError(f"action {each.name!r} has no node that takes jobs: {states_text}")
        down |= {name: states.get(name, "not there") for name in {*nodes, *states}}
        actions[number] = replace(each, nodes=nodes, table=table.model_copy(update={"trials": trials * len(nodes)}))
        if nodes != each.nodes and not is_dry:
            write_text(nodes_file(recipe.file, each.name), "".join(f"{name}\n" for name in nodes))
    down = {name: state for name, state in down.items() if state == "not there" or not slurm.takes_jobs(state)}
    return replace(recipe, actions=tuple(actions)), down


def plan_action(
    project: Project,
    cluster: Cluster,
    launchers: Mapping[str, Launcher],
    action: Action,
    only: set[str] | None,
    limit: int | None,
    arguments: Sequence[str],
    down: Mapping[str, str],
    watched: float | None,
    kinds: Mapping[str, Sequence[slurm.NodeKind]] = MappingProxyType({}),
) -> PlannedAction:
    """Jobs for the open units of an action, in at most ``limit`` groups.

    ``arguments``: for the pytest of trials. ``down``: nodes that take no jobs, with their states. ``watched``: since
    when, for units that jobs since then have not left for good. ``kinds``: the nodes of each partition.
    """
    units, others = project.runnable(action, only, looks=action.table.group.submit_whole)
    for node in sorted(down.keys() & set(action.nodes or ())):
        there = [unit for unit in units if action.node_of(unit) == node]
        units = [unit for unit in units if unit not in there]
        if there:
            others[f"for {node}, which is {down[node]}"] = len(there)
    retry = action.table.retry
    if watched is not None:
        since, count = losses(project.recipe.index, action.name, watched), len(units)

        def is_tried_again(unit: str) -> bool:
            lost = since.get(unit)
            return not lost or (bool(lost[-1]) and lost.count(lost[-1]) <= retry.again(lost[-1]).times)

        units = [*filter(is_tried_again, units)]
        if given_up := count - len(units):
            others["not tried again (pytest-aorta why NAME)"] = given_up
    wave = units
    words = {word for each in arguments for word in re.split("[=,]", each)}
    ends_early = action.table.ends_early or bool(words & {*GOALS, "failures"})
    if action.is_matrix and ends_early and not action.table.group.submit_whole:
        wave = project.next_wave(action, units)
    if later := len(units) - len(wave):
        others["in later waves"] = later
    if action.table.group.submit_whole:
        ready = set(wave)
        wave = [unit for unit in wave if ready.issuperset(project.whole_group(action, unit))]
        if parts := len(ready) - len(wave):
            others["in groups that are not whole (pytest-aorta why NAME)"] = parts
    made = 0

    def is_left(unit: str) -> bool:
        nonlocal made
        made += (is_made := project.is_made(action, unit))
        return not is_made

    groups = list(islice(project.groups(action, wave, is_left), limit))
    if made:
        others["completed"] += made
    if left := len(wave) - made - sum(map(len, groups)):
        others["left for another time"] = left
    # Parts of groups that ask for the same memory and the same node.
    again, lost = retry.again("oom"), losses(project.recipe.index, action.name)
    asked_by: dict[tuple[float, str | None], list[list[str]]] = {}
    for group in groups:
        own: dict[tuple[float, str | None], list[str]] = {}
        for unit in group:
            times = min(lost.get(unit, []).count("oom"), again.times)
            own.setdefault(((again.memory or 1) ** times, action.node_of(unit)), []).append(unit)
        for asked, part in own.items():
            asked_by.setdefault(asked, []).append(part)
    jobs: list[PlannedJob] = []
    for (factor, wanted), same in asked_by.items():
        update: dict[str, Any] = {"resources": action.table.resources.with_memory(factor)}
        if wanted is not None and cluster.scheduler == "slurm":
            options = action.table.submit_options.get(cluster.name, SubmitOptions())
            on_it = options.model_copy(update={"custom": (*options.custom, f"--nodelist={wanted}")})
            update["submit_options"] = {**action.table.submit_options, cluster.name: on_it}
        asking = replace(action, table=action.table.model_copy(update=update))
        jobs += plan_jobs(project, cluster, launchers, asking, same, arguments, kinds)
    return PlannedAction(action, jobs, others)


def plan_jobs(
    project: Project,
    cluster: Cluster,
    launchers: Mapping[str, Launcher],
    action: Action,
    groups: Sequence[Sequence[str]],
    arguments: Sequence[str] = (),
    kinds: Mapping[str, Sequence[slurm.NodeKind]] = MappingProxyType({}),
) -> Iterator[PlannedJob]:
    """The jobs of an action; consecutive groups of equal size share an array.

    ``kinds``: the nodes of each partition, where they are known.
    """
    recipe, table = project.recipe, action.table
    own = table.submit_options.get(cluster.name, SubmitOptions())
    key_of = None if action.is_matrix else project.key_of(action)
    largest = 1
    if cluster.scheduler == "slurm":
        largest = min(cluster.maximum_array_size, slurm.setting("MaxArraySize", 2**31) if kinds else 2**31)
    for size, equal in groupby(groups, len):
        same = [*equal]
        partition = cluster.choose_partition(own.partition, table.resources, size)
        _check_limits(action, cluster, partition, size, kinds)
        for several in (same[start : start + largest] for start in range(0, len(same), largest)):
            tasks = [JobTask(units=tuple(units), keys=tuple(map(key_of, units)) if key_of else ()) for units in several]
            first, more = several[0][0].replace("/", "-") or "all", f"+{size - 1}" if size > 1 else ""
            job = Job(
                name=f"{identifier(action.name)[:60]}-{identifier(first)[:60]}{more}.{uuid.uuid4().hex[:12]}",
                cluster=cluster.name,
                scheduler=cluster.scheduler,
                action=action.name,
                recipe=str(recipe.file),
                tasks=tasks,
                printed=_printed(action.name, own),
            )
            files, commands = dict[str, str](), list[list[str]]()
            for number, units in enumerate(several):
                if action.is_matrix:
                    places = [unit.rpartition("/") for unit in units]
                    names = [f"{identifier(action.name)}[{cell}-{index}]" for cell, _, index in places]
                    files[f"items-{number}.txt"] = "".join(f"./{recipe.file.name}::{name}\n" for name in names)
                    given = ["--color=no", *arguments, "-o", f"cache_dir={job.folder}/cache-{number}"]
                    commands.append([_pytest_line(action, recipe.root, given, job.folder / f"items-{number}.txt")])
                else:
                    paths = [str(project.folder(action, unit).relative_to(recipe.directories)) for unit in units]
                    values = [*map(project.value_of(action), units)]
                    prefix = launcher_prefix(action, size, launchers)
                    lines = shell_commands(table.command or "", paths, values, recipe.workspace.path)
                    commands.append([prefix + line for line in lines])
            files["script.sh"] = script_text(
                [*_sbatch_options(action, cluster, partition, size)] if cluster.scheduler == "slurm" else None,
                name=job.name,
                root=recipe.root,
                folder=job.folder.relative_to(recipe.root),
                output=job.printed,
                variables=action_variables(action.name, table.resources, size, recipe.workspace.path, cluster.name),
                setup=own.setup,
                tasks=commands,
                note=[sys.executable, "-m", "pytest_aorta", "job-ended"],
                throttle=cluster.array_throttle,
                runs_trials=action.is_matrix,
            )
            warnings = [*partition.warnings(table.resources, size)] if partition is not None else []
            cost = table.resources.cost(size) * len(several)
            asked = Asked(
                name=job.name,
                script=job.folder / "script.sh",
                folder=recipe.root,
                output=job.output(0),
                walltime=table.resources.total_walltime(size),
                nodes=action.least_nodes,
                processes=table.resources.total_processes(size),
                threads=table.resources.threads_per_process,
                gpus=table.resources.gpus_per_process,
                partition=None if partition is None else partition.name,
                account=own.account,
            )
            yield PlannedJob(job, files, cost, warnings, asked)


def _check_limits(
    action: Action,
    cluster: Cluster,
    partition: Partition | None,
    size: int,
    kinds: Mapping[str, Sequence[slurm.NodeKind]],
) -> None:
    """Raise ``RecipeError`` for a job that could never start."""
    own = action.table.submit_options.get(cluster.name, SubmitOptions())
    there = kinds.get("" if partition is None else partition.name, ())
    if not there or any(
        re.match("--(partition|time|clusters|qos|overcommit)|-[ptMqO]", it)
        for it in (*cluster.submit_options, *own.custom)
    ):
        return
    resources, memory = action.table.resources, action.table.resources.memory
    threads, gpus = resources.threads_per_process or 1, resources.gpus_per_process or 0
    per_process = (memory.per_cpu_mb or 0) * threads + (memory.per_gpu_mb or 0) * gpus if memory is not None else 0
    asked = (
        (
            "minutes",
            math.ceil(resources.total_walltime(size) / timedelta(minutes=1)),
            max(kind.minutes for kind in there),
        ),
        ("CPUs of one node for a process", threads, max(kind.cpus for kind in there)),
        ("CPUs", resources.total_cpus(size), sum(kind.nodes * kind.cpus for kind in there)),
        ("GPUs of one node for a process", gpus, max(kind.gpus for kind in there)),
        ("GPUs", resources.total_gpus(size), sum(kind.nodes * kind.gpus for kind in there)),
        ("MB of one node for a process", per_process, max(kind.memory_mb for kind in there)),
        ("nodes", action.least_nodes, sum(kind.nodes for kind in there)),
    )
    if over := [f"{number:g} {what}, of {most:g}" for what, number, most in asked if number > most]:
        name = f"partition {partition.name!r}" if partition is not None else "the default partition"
        raise RecipeError(
            f"action {action.name!r}: a job over {size} can never start on {name} of {cluster.name!r}: it asks for "
            + "; ".join(over)
        )


def _printed(action: str, options: SubmitOptions) -> str | None:
    """The path for a job's output by Row's keys, relative to the recipe."""
    if options.output_file_path is None and options.output_file_name is None:
        return None
    name = (options.output_file_name or "{action_name}-%j.out").replace("{action_name}", identifier(action))
    return os.path.join(options.output_file_path or "", name)


def _pytest_line(action: Action, start: Path, arguments: Sequence[str], items: Path) -> str:
    """The command that runs the trials named in a file: on each node of the job, where they need several."""
    nodes, distributed = action.least_nodes, action.table.distributed
    step = []
    if nodes > 1:  # each of them has to know, before it has read the recipe, that it is one of several
        arguments = [*arguments, *(f"--aorta-elastic={name}={value}" for name, value in distributed.elastic.items())]
        arguments += [f"--aorta-nproc={distributed.nproc}"] if distributed.nproc is not None else []
        step = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none"]
    words = [*step, sys.executable, "-m", "pytest", *arguments, f"@{items}"]
    return f"cd -- {shlex.quote(str(start))} && exec {shlex.join(words)}"


def submit(planned: PlannedJob, root: Path) -> Job:
    """Submit a job and store it; a job of the scheduler ``bash`` has ended when this returns.

    Raises:
        SchedulerError: the scheduler has refused it.
        LostAnswer: whether it has it is not known; that is found out the next time.
        OSError: the folder of the job cannot be written; nothing was submitted.
    """
    job = planned.job.model_copy(update={"created": time.time()})
    job.folder.mkdir(parents=True)
    if job.printed is not None:
        (root / job.printed).parent.mkdir(parents=True, exist_ok=True)
    for name, text in planned.files.items():
        write_text(job.folder / name, text)
    job.save()
    fd = os.open(job.folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    scheduler, ended = scheduler_of(job.scheduler), None
    try:
        job.number, ended = scheduler.submit(planned.asked)
    except slurm.LostAnswer as lost:
        with contextlib.suppress(slurm.SchedulerError):
            job.number = scheduler.find({job.name}, in_accounting=False).get(job.name)
        if job.number is None:
            raise lost
    except slurm.SchedulerError as error:
        job.forbid()
        job.refused = str(error)
        job.save()
        raise
    except BaseException:  # Ctrl-C, of a job that runs here
        job.tasks[0].state = TaskState(state="CANCELLED", over=job.scheduler == "bash")
        job.save()
        raise
    if ended is not None:
        job.tasks[0].state = ended
    job.save()
    _log.info("job %s submitted to %s as %s", job.name, job.scheduler, job.number)
    return job


#: Times that SLURM may start a job again.
MAXIMUM_RESTARTS = 10

_RUN = """\
failed=0 stopped='' child=''
stop() {{
    stopped=1
    echo stopped >> "$job/task-$task.log"
    if [ -n "$child" ]; then kill -TERM -- "{target}"; fi
}}
trap stop TERM
run() {{ # the number of a command, and the command
    if [ -n "$stopped" ]; then return; fi
    if grep -qsx "status $1 0" "$job/task-$task.log"; then return; fi # before the job was started again
    echo "began $1 $HOSTNAME" >> "$job/task-$task.log"
    set -m # a process group of its own
    (eval "$2") < /dev/null &
    child=$!
    set +m
    wait "$child"
    local status=$?
    while [ "$status" -gt 128 ] && kill -0 "$child" 2> /dev/null; do # a signal has ended the wait
        wait "$child"
        status=$?
    done
    child=''
    if [ "$status" -gt {accepted} ]; then failed=2; fi
    if [ -n "$stopped" ] && [ "$status" -ne 0 ]; then return; fi # it was asked to end
    echo "status $1 $status" >> "$job/task-$task.log"
}}
"""

_END = """\
end() {{
    trap '' TERM
    {note} "$job" "$task"
}}
trap end EXIT
"""


def script_text(
    options: Sequence[str] | None,
    name: str,
    root: Path,
    folder: Path,
    variables: Mapping[str, str],
    setup: str | None,
    tasks: Sequence[Sequence[str]],
    note: Sequence[str],
    throttle: int | None = None,
    output: str | None = None,
    *,
    runs_trials: bool = False,
) -> str:
    """The script of a job.

    Args:
        options: of sbatch; ``None`` for a script that runs here.
        root, folder: of the recipe, and of the job from there.
        setup: shell text of the user's, before the commands.
        tasks: commands of each task; several are an array.
        note: the command that notes how a task has ended.
        throttle: tasks of an array that run at a time.
        output: the file for what they print; by default, one in the folder of the job.
        runs_trials: whether commands run pytest, which keeps the index itself, and exits with 1 where trials fail.
    """
    is_array = len(tasks) > 1
    lines = ["#!/bin/bash"]
    if options is not None:
        output = output or f"{folder}/output-{'%a' if is_array else '0'}.txt"
        own = [f"--job-name={name}", f"--output={quoted(output)}"]
        if is_array:
            own.append(f"--array=0-{len(tasks) - 1}{f'%{throttle}' if throttle is not None else ''}")
        lines += [f"#SBATCH {option}" for option in (*options, *own)]
    lines += [
        "",
        f"cd -- {shlex.quote(str(root))} || exit 1",
        f"job={folder}",
        f"task={'$SLURM_ARRAY_TASK_ID' if is_array else '0'}",
        "# A job that was forgotten, or is known to have ended, does nothing when it begins after all.",
        'if [ ! -e "$job/job.json" ] || [ -e "$job/over-$task" ]; then exit 0; fi',
    ]
    if options is not None:
        lines += [
            f'if [ "${{SLURM_RESTART_COUNT:-0}}" -gt {MAXIMUM_RESTARTS} ]; then',
            '    echo "restarted $SLURM_RESTART_COUNT times: not started again" >&2',
            "    exit 3",
            "fi",
        ]
    lines += ["", *(f"export {name}={shlex.quote(value)}" for name, value in variables.items())]
    lines.append(f'export {JOB_VARIABLE}="$PWD/$job" {TASK_VARIABLE}="$task"')
    if setup:
        lines += ["", setup, "# shellcheck disable=SC2181"]
        lines.append('if [ "$?" -ne 0 ]; then echo "the setup has failed" >&2; exit 1; fi')
    lines.append("")
    if not runs_trials:
        lines.append(_END.format(note=shlex.join(note)))
    target, accepted = ("$child", 1) if runs_trials else ("-$child", 0)
    lines += [_RUN.format(target=target, accepted=accepted), "case $task in"]
    for number, commands in enumerate(tasks):
        runs = [f"    run {index} {shlex.quote(command)}" for index, command in enumerate(commands)]
        lines += [f"{number})", *runs, "    ;;"]
    return "\n".join([*lines, "esac", 'exit "$failed"']) + "\n"


#: Seconds before its time limit at which a job is asked to end; less for short ones. SLURM may be a minute early.
_NOTICE = 120

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+=,-]+")


def _sbatch_options(action: Action, cluster: Cluster, partition: Partition | None, units: int) -> Iterator[str]:
    """The options of a job, ordered so that the user's override others."""
    own = action.table.submit_options.get(cluster.name, SubmitOptions())
    resources, memory = action.table.resources, action.table.resources.memory
    gpus, processes = resources.gpus_per_process, resources.total_processes(units)
    if partition is not None:
        yield f"--partition={quoted(partition.name)}"
    if action.is_matrix:
        tasks = math.ceil(processes / action.least_nodes)
        yield f"--nodes={action.least_nodes}"
        yield f"--ntasks-per-node={tasks}"
        if gpus is not None:
            yield f"--gpus-per-node={gpus * tasks}"
    else:
        yield f"--ntasks={processes}"
        total, per_node = resources.total_cpus(units), partition and partition.cpus_per_node
        if gpus is not None:
            yield f"{cluster.slurm_gpus_per_task}{gpus}"
            total, per_node = gpus * processes, partition and partition.gpus_per_node
        if per_node:
            yield f"--nodes={math.ceil(total / per_node)}"
    if resources.threads_per_process is not None:
        yield f"--cpus-per-task={resources.threads_per_process}"
    if memory is not None and memory.per_gpu_mb is not None:
        if gpus is None:
            raise RecipeError(
                f"action {action.name!r}: resources.memory.per_gpu_mb without resources.gpus_per_process; "
                "expected per_cpu_mb"
            )
        yield f"--mem-per-gpu={memory.per_gpu_mb}M"
    elif memory is not None:
        yield f"--mem-per-cpu={memory.per_cpu_mb}M"
    elif partition is not None and gpus is not None and partition.memory_per_gpu is not None:
        yield f"--mem-per-gpu={partition.memory_per_gpu}"
    elif partition is not None and gpus is None and partition.memory_per_cpu is not None:
        yield f"--mem-per-cpu={partition.memory_per_cpu}"
    limit = resources.total_walltime(units)
    yield f"--time={max(1, math.ceil(limit / timedelta(minutes=1)))}"
    yield f"--signal=B:TERM@{min(_NOTICE, max(10, int(limit.total_seconds() / 10)))}"
    yield "--requeue"
    yield "--open-mode=append"
    yield from cluster.submit_options
    if own.account is not None:
        yield f"--account={quoted(own.account + ((partition and partition.account_suffix) or ''))}"
    for option in own.custom:
        if not option.isprintable():
            raise RecipeError(f"action {action.name!r}: submit option {option!r} is not one line of printable text")
        yield option


def quoted(text: str) -> str:
    """Quote a word for a line that sbatch reads; raises ``RecipeError`` if it is not printable."""
    if _PLAIN.fullmatch(text):
        return text
    if not text.isprintable():
        raise RecipeError(f"{text!r} is not one line of printable text, and cannot be given to sbatch")
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
