"""Commands on jobs: submit, jobs, cancel."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType
from typing import Any

import click

from pytest_aorta.cli.shared import (
    action_option,
    chosen_units,
    cluster_option,
    columns,
    echo_table,
    json_option,
    names_argument,
    names_from_stdin,
    open_recipe,
    project_options,
    recipe_option,
    registry_option,
    units_where,
    warn_of,
    where_option,
)
from pytest_aorta.common.conditions import TypedCondition
from pytest_aorta.common.texts import counted, printable
from pytest_aorta.settings import RequestError
from pytest_aorta.workflow import submission
from pytest_aorta.workflow.clusters import Cluster, Configuration
from pytest_aorta.workflow.jobs import JOBS, Job, read_job, read_jobs
from pytest_aorta.workflow.project import Project
from pytest_aorta.workflow.recipe import Cost, read_recipe
from pytest_aorta.workflow.schedulers import scheduler_of
from pytest_aorta.workflow.slurm import LostAnswer, NodeKind, TaskState, node_kinds
from pytest_aorta.workflow.submission import PlannedAction, PlannedJob
from pytest_aorta.workspace.atomic import locked

#: Seconds between two looks at jobs that are watched.
_INTERVAL = 15.0

#: Exit status of a process that Ctrl-C has ended.
_INTERRUPTED = 130


@click.command("submit")
@names_argument("[DIRECTORY | CELL | TRIAL | -]...")
@action_option("Of these actions; * and ? are wildcards.")
@cluster_option("Cluster to submit to (default: the one that this host is part of).")
@click.option("-n", "--max-jobs", type=click.IntRange(1), metavar="N", help="Submit at most N jobs.")
@click.option("--dry-run", is_flag=True, help="Show the scripts of the jobs; submit nothing.")
@recipe_option
@click.option(
    "--yes",
    "sure",
    is_flag=True,
    envvar=["PYTEST_AORTA_YES", "ROW_YES"],
    help="Do not ask, even on a terminal.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Wait for jobs to end, then submit the next wave, and lost units again as retry says.",
)
@click.option("--pytest-args", default="", metavar="TEXT", help="Options for pytest, such as '--aorta-slots 2'.")
@where_option
@registry_option
def submit(
    names: tuple[str, ...],
    action: str,
    cluster: str | None,
    max_jobs: int | None,
    dry_run: bool,
    recipe: Path | None,
    sure: bool,
    watch: bool,
    pytest_args: str,
    where: tuple[TypedCondition, ...],
    files: tuple[str, ...],
) -> None:
    """With names, submits only these directories, or all trials of these cells (-: names from stdin). Leaves out units
    that wait for previous actions or are submitted already. Asks before it submits, on a terminal. With --watch, stays
    until nothing is left to run; Ctrl-C then leaves submitted jobs alone.
    """
    checked = open_recipe(recipe)
    configuration = Configuration.of_project(checked.root)
    target = configuration.cluster(cluster)
    launchers = configuration.launchers_on(target.name)
    arguments = [*(f"--aorta-registry-file={Path(file).absolute()}" for file in files), *shlex.split(pytest_args)]
    names = tuple(names_from_stdin(names))
    kinds: dict[str, list[NodeKind]] = {}
    if target.scheduler == "slurm":
        with contextlib.suppress(RequestError):  # on a host without SLURM, scripts can be looked at
            kinds = node_kinds()
    began = time.time()

    def submit_next(is_first: bool) -> bool:
        """Submit; whether there is something to wait for."""
        nonlocal checked
        checked, down = submission.with_nodes(checked, target, action, is_dry=dry_run)
        project = Project(checked, files)
        with locked(checked.index / JOBS):  # one submission at a time
            project.synchronize_jobs(is_submitting=not dry_run)
            project.rebuild()
            warn_of(project.problems if is_first else ())
            actions = project.actions(action)
            chosen = units_where(project, actions, chosen_units(names, project), where)
            watched = (began if not is_first else math.inf) if watch else None
            planned, left = list[PlannedAction](), max_jobs
            for each in actions:
                project.check_overlap(each, chosen[each.name])
            for each in actions:
                if left == 0:
                    break
                only = chosen[each.name]
                plan = submission.plan_action(
                    project, target, launchers, each, only, left, arguments, down, watched, kinds
                )
                left = None if left is None else left - plan.count
                planned.append(plan)
            if not dry_run:
                project.workspace.save()
            jobs = [job for each in planned for job in each.jobs]
            if is_first or jobs:
                _report(target, planned)
            if dry_run:
                for number, job in enumerate(jobs, 1):
                    _say(f"# script {number} of {len(jobs)}: {job.job.name}\n{job.script}", nl=False)
            elif jobs and (sure or not is_first or _is_confirmed(target, jobs)):
                _submit(jobs, checked.root)
            else:
                return any(job.is_open for job in project.jobs)
            return not dry_run

    try:
        if not dry_run:
            (checked.index / JOBS).mkdir(parents=True, exist_ok=True)
        is_first = True
        while submit_next(is_first) and watch:
            is_first = False
            while any(job.is_open for job in Project(checked, files).synchronize_jobs()):
                time.sleep(_INTERVAL)
    except OSError as error:
        raise RequestError(f"{checked.index / JOBS} cannot be written: {error.strerror}") from None
    except KeyboardInterrupt:
        if not watch:
            raise
        _say("no longer watched; what was submitted goes on")
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _report(target: Cluster, planned: Sequence[PlannedAction]) -> None:
    for each in planned:
        units = sum(len(task.units) for job in each.jobs for task in job.job.tasks)
        kind = "trial" if each.action.is_matrix else each.action.table.each
        what = f"{units} directories" if kind == "directory" and units != 1 else counted(units, kind)
        new = f"{counted(each.count, 'job')} ({what}) on {target.name}, up to {_cost(each.jobs)}"
        others = [f"{count} {what}" for what, count in each.others.items()]
        _say(f"{each.action.name}: {', '.join([new if each.jobs else 'no job', *others])}")
        warnings = dict.fromkeys(text for job in each.jobs for text in job.warnings)
        warn_of([f"{each.action.name}: {text}" for text in warnings])


def _is_confirmed(target: Cluster, jobs: Sequence[PlannedJob]) -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    count = counted(sum(len(job.job.tasks) for job in jobs), "job")
    try:
        answer = input(f"Submit {count} to {target.name} that may cost up to {_cost(jobs)}? [Y/n] ")
    except EOFError:
        answer = "n"
    if answer.strip().lower() in ("", "y", "yes"):
        return True
    _say("nothing was submitted")
    return False


def _submit(jobs: Sequence[PlannedJob], root: Path) -> None:
    total = len(jobs)
    with _interrupts_noted() as interrupted:
        for done, planned in enumerate(jobs):
            if interrupted():
                _say(f"interrupted: {done} of {total} submitted, which are recorded; the rest is not")
                raise click.exceptions.Exit(_INTERRUPTED)
            try:
                job = submission.submit(planned, root)
            except RequestError as error:
                why = ""
                if isinstance(error, LostAnswer):
                    name = planned.job.name
                    why = f". Whether it has job {name} is looked up by this name the next time (pytest-aorta jobs)"
                raise RequestError(f"{error}{why}; {done} of {total} were submitted before, the rest was not") from None
            _say(f"{job.cluster}/{job.number}  {job.name}")


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Note the first SIGINT or SIGTERM, and interrupt at the second; yields whether there was one."""
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


def _cost(jobs: Sequence[PlannedJob]) -> Cost:
    return sum((job.cost for job in jobs), Cost())


def _say(text: str, *, nl: bool = True) -> None:
    click.echo(printable(text), nl=nl)


@click.command("jobs")
@action_option("Of these actions; * and ? are wildcards.")
@click.option("--all", "show_all", is_flag=True, help="Also show jobs that have ended.")
@click.option("--short", is_flag=True, help="Print only numbers, one per line, for scancel and squeue.")
@json_option
@project_options(rebuilds=False)
def jobs(project: Project, action: str, show_all: bool, short: bool, as_json: bool) -> None:
    """Without --all, also shows, once, jobs that ended in another way than COMPLETED."""
    rows = [
        row
        for job in (read_jobs(project.recipe.index) if show_all else project.jobs)
        for row in _rows(job)
        if fnmatchcase(job.action, action) and (show_all or not row["over"] or row["state"] != "COMPLETED")
    ]
    if as_json:
        click.echo(json.dumps({"jobs": rows}, indent=1))
    elif short:
        for row in rows:
            if show_all or not row["over"]:
                click.echo(row["id"])
    elif not rows:
        click.echo("There are no jobs." if show_all else "There are no jobs; --all shows ended ones.")
    else:
        table = [["ID", "Action", "State", "Reason", "Units", "Name"]]
        for row in rows:
            fields = (str(row[name]) for name in ("action", "state", "reason", "units", "name"))
            table.append([f"{row['cluster']}/{row['id']}", *fields])
        lines = columns(table, right=[4])
        for number, row in enumerate(rows, 1):
            color = {"RUNNING": "blue", "COMPLETED": "green"}.get(row["state"], "red" if row["over"] else "yellow")
            lines[number] = click.style(lines[number], fg=color)
        echo_table(lines)


@click.command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@action_option("Cancel all jobs of these actions; * and ? are wildcards.", None)
@click.option("--all", "everything", is_flag=True, help="Cancel all jobs of this recipe.")
@project_options(rebuilds=False)
def cancel(project: Project, ids: tuple[str, ...], action: str | None, everything: bool) -> None:
    """The number of an array cancels all of its tasks. Running trials write their results, if SLURM gives them time."""
    if bool(ids) + bool(action) + everything != 1:
        raise RequestError("cancel: which jobs? Give their numbers, --action PATTERN, or --all")
    chosen = [
        (job, row["id"])
        for job in project.jobs
        for row in (_rows(job) if job.number is not None else ())
        if not row["over"]
        and (everything or row["id"] in ids or job.number in ids or (action and fnmatchcase(job.action, action)))
    ]
    numbers = {number for job, task in chosen for number in (job.number, task)}
    if unknown := [number for number in ids if number not in numbers]:
        raise RequestError(f"cancel: {unknown[0]!r} is no job of this recipe that has not ended; see pytest-aorta jobs")
    if not chosen:
        click.echo("There are no such jobs.")
        return
    for name in dict.fromkeys(job.scheduler for job, _ in chosen):
        scheduler_of(name).cancel([number for job, number in chosen if job.scheduler == name])
    click.echo(f"{counted(len(chosen), 'job')} cancelled.")


def _rows(job: Job) -> Iterator[dict[str, Any]]:
    for number, task in enumerate(job.tasks):
        state = job.state(number)
        yield {
            "id": job.identity(number),
            "cluster": job.cluster,
            "action": job.action,
            "state": state.state,
            "reason": state.reason,
            "units": len(task.units),
            "over": state.over,
            "name": job.name,
            "output": str(job.output(number)),
        }


@click.command("job-ended", hidden=True)
@click.argument("folder", type=Path)
@click.argument("task", type=int)
def job_ended(folder: Path, task: int) -> None:
    job = read_job(folder)
    if job is not None:
        Project(read_recipe(Path(job.recipe))).settle(job, task, TaskState(state="COMPLETED"))
