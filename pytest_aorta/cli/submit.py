"""``pytest-aorta submit``: jobs for what a recipe has left to run."""

from __future__ import annotations

import math
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_aorta.cli.shared import (
    action_option,
    chosen_units,
    names_argument,
    names_from_stdin,
    open_recipe,
    registry_files,
    registry_option,
    typed_conditions,
    units_where,
    warn_of,
    where_option,
)
from pytest_aorta.common.texts import printable
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.workflow.jobs import PlannedJob, Target
    from pytest_aorta.workflow.project import Project
    from pytest_aorta.workflow.recipe import Action, Cost

#: Seconds between two looks at jobs that are watched.
_INTERVAL = 15.0

#: Exit status of a process that Ctrl-C has ended.
_INTERRUPTED = 130


@dataclass(frozen=True)
class _Planned:
    action: Action
    jobs: Sequence[PlannedJob]
    others: Counter[str]

    @property
    def count(self) -> int:
        return sum(len(job.job.tasks) for job in self.jobs)


@click.command("submit")
@names_argument("[DIRECTORY | CELL | TRIAL | -]...")
@action_option("Of these actions; * and ? are wildcards.")
@click.option(
    "--cluster",
    metavar="NAME",
    envvar=["PYTEST_AORTA_CLUSTER", "ROW_CLUSTER"],
    help="Cluster to submit to (default: the one that this host is part of).",
)
@click.option("-n", "--max-jobs", type=click.IntRange(1), metavar="N", help="Submit at most so many jobs.")
@click.option("--dry-run", is_flag=True, help="Show the scripts of the jobs; submit nothing.")
@click.option("--recipe", type=click.Path(path_type=Path), metavar="FILE", help="Another recipe than aorta.toml.")
@click.option(
    "--yes",
    "sure",
    is_flag=True,
    envvar=["PYTEST_AORTA_YES", "ROW_YES"],
    help="Do not ask, on a terminal either.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Wait for the end of jobs, and submit what they leave: the next wave, and what was lost, as retry says.",
)
@click.option("--pytest-args", default="", metavar="TEXT", help="For the pytest of trials, such as '--aorta-slots 2'.")
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
    where: tuple[str, ...],
    files: tuple[str, ...],
) -> None:
    """Submit what is left to run of a recipe as jobs, group by group.

    With names, only these directories, or all trials of these cells (-: names from stdin). What waits for previous
    actions, and what the scheduler has already, is left for another time. On a terminal, it asks before it submits.
    With --watch, it stays until nothing is left: Ctrl-C leaves the jobs that there are.
    """
    checked = open_recipe(recipe)
    from pytest_aorta.workflow.clusters import Configuration
    from pytest_aorta.workflow.jobs import JOBS, Target
    from pytest_aorta.workflow.project import Project
    from pytest_aorta.workspace.atomic import locked

    configuration = Configuration.of_project(checked.root)
    found = configuration.cluster(cluster)
    target = Target(checked, found, configuration.launchers_on(found.name))
    arguments = [*(f"--aorta-registry-file={Path(file).absolute()}" for file in files), *shlex.split(pytest_args)]
    names = tuple(names_from_stdin(names))
    began = time.time()

    def submit_next(is_first: bool) -> bool:
        """Whether there is something to wait for."""
        project = Project(checked, registry_files(files))
        with locked(checked.index / JOBS):  # one submission at a time
            project.open(is_submitting=not dry_run)
            warn_of(project.problems if is_first else ())
            only, actions = chosen_units(names, project), project.actions(action)
            met = units_where(project, actions, only, typed_conditions(where))
            planned, left = [], max_jobs
            for each in actions:
                chosen = only if met is None else met[each.name]
                watched = (began if not is_first else math.inf) if watch else None
                planned.append(_planned(project, target, each, chosen, left, arguments, watched))
                left = None if left is None else left - planned[-1].count
            if not dry_run:
                project.save()
            jobs = [job for each in planned for job in each.jobs]
            if is_first or jobs:
                _report(target, planned)
            if dry_run:
                _show(jobs)
            elif jobs and (sure or not is_first or _is_confirmed(target, jobs)):
                _submit(target, jobs)
            else:
                return any(job.is_open for job in project.jobs)
            return not dry_run

    def is_waiting() -> bool:
        project = Project(checked, registry_files(files))
        return any(job.is_open for job in project.synchronize_jobs())

    try:
        if not dry_run:
            (checked.index / JOBS).mkdir(parents=True, exist_ok=True)
        is_first = True
        while submit_next(is_first) and watch:
            is_first = False
            while is_waiting():
                time.sleep(_INTERVAL)
    except OSError as error:
        raise RequestError(f"{checked.index / JOBS} cannot be written: {error.strerror}") from None
    except KeyboardInterrupt:
        if not watch:
            raise
        _say("no longer watched; what was submitted goes on")
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _planned(
    project: Project,
    target: Target,
    action: Action,
    only: set[str] | None,
    limit: int | None,
    arguments: Sequence[str],
    watched: float | None = None,
) -> _Planned:
    """``watched``: since when, for the next wave only, and for what jobs since then have not left for good."""
    from pytest_aorta.common.texts import identifier
    from pytest_aorta.triage import GOALS
    from pytest_aorta.workflow.commands import shell_commands
    from pytest_aorta.workflow.groups import check_whole
    from pytest_aorta.workflow.jobs import command_lines, losses, plan_jobs, pytest_line

    recipe, value_of = project.recipe, project.value_of(action)

    def commands(units: Sequence[str], folder: Path, task: int) -> list[str]:
        if action.is_matrix:
            given = ["--color=no", *arguments, "-o", f"cache_dir={folder}/cache-{task}"]
            return [pytest_line(action, recipe.root, given, folder / f"items-{task}.txt")]
        paths = [str(project.folder(action, unit).relative_to(recipe.directories)) for unit in units]
        values = [value_of(unit) for unit in units]
        lines = shell_commands(action.table.command or "", paths, values, recipe.workspace.path)
        return command_lines(target, action, lines, len(units))

    def items(units: Sequence[str], task: int) -> dict[str, str]:
        if not action.is_matrix:
            return {}
        places = [unit.rpartition("/") for unit in units]
        names = [f"{identifier(action.name)}[{cell}-{index}]" for cell, _, index in places]
        return {f"items-{task}.txt": "".join(f"./{recipe.file.name}::{name}\n" for name in names)}

    def by_memory(groups: Sequence[Sequence[str]]) -> Iterator[tuple[float, list[list[str]]]]:
        again = action.table.retry.again("oom")
        parts: dict[float, list[list[str]]] = {}
        for group in groups:
            own: dict[float, list[str]] = {}
            for unit in group:
                times = min(lost.get(unit, []).count("oom"), again.times)
                own.setdefault((again.memory or 1) ** times, []).append(unit)
            for factor, part in own.items():
                parts.setdefault(factor, []).append(part)
        yield from parts.items()

    units, others = project.runnable(action, only)
    words = {word for each in arguments for word in re.split("[=,]", each)}
    until_decided = action.table.until_decided or bool(words & GOALS)
    lost = losses(recipe.index, action.name)
    if watched is not None:
        since, count = losses(recipe.index, action.name, watched), len(units)
        units = [unit for unit in units if _is_tried_again(action, since.get(unit, ()))]
        if given_up := count - len(units):
            others["not tried again (pytest-aorta why NAME)"] = given_up
    waves = project.waves(action, units, until_decided=action.is_matrix and until_decided)
    if watched is not None and len(waves) > 1:
        others["in later waves"] = sum(len(group) for wave in waves[1:] for group in wave)
        waves = waves[:1]
    groups = [(number, group) for number, wave in enumerate(waves) for group in wave]
    check_whole(action, [group for _, group in groups], project.units(action), value_of)
    if limit is not None and len(groups) > limit:
        others["left for another time"] = sum(len(group) for _, group in groups[limit:])
        groups = groups[:limit]
    jobs = [
        replace(job, wave=number)
        for number, wave in groupby(groups, lambda each: each[0])
        for factor, same in by_memory([group for _, group in wave])
        for job in plan_jobs(target, _with_memory(action, factor), same, commands, items)
    ]
    if not action.is_matrix:
        key_of = project.key_of(action)
        for task in (task for job in jobs for task in job.job.tasks):
            task.keys = tuple(map(key_of, task.units))
    return _Planned(action, jobs, others)


def _is_tried_again(action: Action, losses: Sequence[str]) -> bool:
    return not losses or (bool(losses[-1]) and losses.count(losses[-1]) <= action.table.retry.again(losses[-1]).times)


def _with_memory(action: Action, factor: float) -> Action:
    resources = action.table.resources.with_memory(factor)
    return replace(action, table=action.table.model_copy(update={"resources": resources}))


def _report(target: Target, planned: Sequence[_Planned]) -> None:
    for each in planned:
        units = sum(len(task.units) for job in each.jobs for task in job.job.tasks)
        kind = "trial" if each.action.is_matrix else each.action.table.each
        what = f"{units} directories" if kind == "directory" and units != 1 else _counted(units, kind)
        new = f"{_counted(each.count, 'job')} ({what}) on {target.cluster.name}, up to {_cost(each.jobs)}"
        if waves := max((job.wave for job in each.jobs), default=0):
            new += f", in {waves + 1} waves until all cells are decided"
        others = [f"{count} {what}" for what, count in each.others.items()]
        _say(f"{each.action.name}: {', '.join([new if each.jobs else 'no job', *others])}")
        warnings = dict.fromkeys(text for job in each.jobs for text in job.warnings)
        warn_of([f"{each.action.name}: {text}" for text in warnings])


def _show(jobs: Sequence[PlannedJob]) -> None:
    for number, job in enumerate(jobs, 1):
        _say(f"# script {number} of {len(jobs)}: {job.job.name}\n{job.script}", nl=False)


def _is_confirmed(target: Target, jobs: Sequence[PlannedJob]) -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    count = _counted(sum(len(job.job.tasks) for job in jobs), "job")
    question = f"Submit {count} to {target.cluster.name} that may cost up to {_cost(jobs)}? [Y/n] "
    try:
        answer = input(question)
    except EOFError:
        answer = "n"
    if answer.strip().lower() in ("", "y", "yes"):
        return True
    _say("nothing was submitted")
    return False


def _submit(target: Target, jobs: Sequence[PlannedJob]) -> None:
    from pytest_aorta.workflow.jobs import interrupts_noted
    from pytest_aorta.workflow.jobs import submit as submit_job
    from pytest_aorta.workflow.slurm import LostAnswer

    done, total = 0, len(jobs)
    numbers: dict[tuple[str, int], list[str]] = {}  # of the jobs of an action in a wave
    with interrupts_noted() as interrupted:
        for planned in jobs:
            if interrupted():
                _say(f"interrupted: {done} of {total} submitted, which are recorded; the rest is not")
                raise click.exceptions.Exit(_INTERRUPTED)
            try:
                job = submit_job(target, planned, numbers.get((planned.job.action, planned.wave - 1), ()))
            except RequestError as error:
                why = ""
                if isinstance(error, LostAnswer):
                    name = planned.job.name
                    why = f". Whether it has job {name} is looked up by this name the next time (pytest-aorta jobs)"
                raise RequestError(f"{error}{why}; {done} of {total} were submitted before, the rest was not") from None
            done += 1
            numbers.setdefault((job.action, planned.wave), []).append(str(job.number))
            _say(f"{job.cluster}/{job.number}  {job.name}")


def _cost(jobs: Sequence[PlannedJob]) -> Cost:
    from pytest_aorta.workflow.recipe import Cost

    return sum((job.cost for job in jobs), Cost())


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _say(text: str, *, nl: bool = True) -> None:
    click.echo(printable(text), nl=nl)
