"""The script of a job, and what it says to sbatch: pure text.

Every word that is not the user's own shell text is quoted for the shell.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from pytest_aorta.workflow.clusters import Cluster, Partition
from pytest_aorta.workflow.finding import RecipeError
from pytest_aorta.workflow.recipe import Action, SubmitOptions

#: Variables in a job: its folder, and which task of it this is.
JOB_VARIABLE, TASK_VARIABLE = "AORTA_JOB", "AORTA_JOB_TASK"

#: Times that SLURM may start a job again.
MAXIMUM_RESTARTS = 10


def log_of(task: int) -> str:
    """The file in the folder of a job to which a task appends what happens."""
    return f"task-{task}.log"


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
    *,
    runs_trials: bool = False,
) -> str:
    """The script of a job.

    Args:
        options: of sbatch; ``None`` for a script that runs here.
        name: of the job in the scheduler.
        root, folder: of the recipe, and of the job from there.
        variables: that commands have.
        setup: shell text of the user's, before them.
        tasks: commands of each task; several are an array.
        note: the command that notes how a task has ended.
        throttle: tasks of an array that run at a time.
        runs_trials: whether commands run pytest, which keeps the index itself, and exits with 1 where trials fail.
    """
    is_array = len(tasks) > 1
    lines = ["#!/bin/bash"]
    if options is not None:
        own = [f"--job-name={name}", f"--output={folder}/output-{'%a' if is_array else '0'}.txt"]
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


def sbatch_options(action: Action, cluster: Cluster, partition: Partition | None, units: int) -> Iterator[str]:
    """The options of a job over so many units, in an order in which those of the user win."""
    own = action.table.submit_options.get(cluster.name, SubmitOptions())
    resources = action.table.resources
    if partition is not None:
        yield f"--partition={quoted(partition.name)}"
    yield from _trial_sizes(action, units) if action.is_matrix else _command_sizes(action, partition, units)
    if resources.threads_per_process is not None:
        yield f"--cpus-per-task={resources.threads_per_process}"
    yield from _memory(action, partition)
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


def _command_sizes(action: Action, partition: Partition | None, units: int) -> Iterator[str]:
    resources = action.table.resources
    yield f"--ntasks={resources.total_processes(units)}"
    if resources.gpus_per_process is not None:
        yield f"--gpus-per-task={resources.gpus_per_process}"
        total, per_node = resources.total_gpus(units), partition and partition.gpus_per_node
    else:
        total, per_node = resources.total_cpus(units), partition and partition.cpus_per_node
    if per_node:
        yield f"--nodes={math.ceil(total / per_node)}"


def _trial_sizes(action: Action, units: int) -> Iterator[str]:
    nodes, resources = nodes_of(action), action.table.resources
    tasks = math.ceil(resources.total_processes(units) / nodes)
    yield f"--nodes={nodes}"
    yield f"--ntasks-per-node={tasks}"
    if resources.gpus_per_process is not None:
        yield f"--gpus-per-node={resources.gpus_per_process * tasks}"


def _memory(action: Action, partition: Partition | None) -> Iterator[str]:
    resources, memory = action.table.resources, action.table.resources.memory
    if memory is not None and memory.per_gpu_mb is not None:
        if resources.gpus_per_process is None:
            raise RecipeError(
                f"action {action.name!r}: resources.memory.per_gpu_mb without resources.gpus_per_process; "
                "expected per_cpu_mb"
            )
        yield f"--mem-per-gpu={memory.per_gpu_mb}M"
    elif memory is not None:
        yield f"--mem-per-cpu={memory.per_cpu_mb}M"
    elif partition is not None and resources.gpus_per_process is not None:
        if partition.memory_per_gpu is not None:
            yield f"--mem-per-gpu={partition.memory_per_gpu}"
    elif partition is not None and partition.memory_per_cpu is not None:
        yield f"--mem-per-cpu={partition.memory_per_cpu}"


def nodes_of(action: Action) -> int:
    """Nodes that a trial of an action with a workload needs at least."""
    return int(str(action.table.distributed.elastic.get("nnodes", 1)).partition(":")[0])


def quoted(text: str) -> str:
    """A word of a line that sbatch reads.

    Raises:
        RecipeError: it cannot be written in one line.
    """
    if _PLAIN.fullmatch(text):
        return text
    if not text.isprintable():
        raise RecipeError(f"{text!r} is not one line of printable text, and cannot be given to sbatch")
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
