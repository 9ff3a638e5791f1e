"""``pytest-aorta submit``: jobs for what a recipe has left to run."""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_aorta.cli.shared import (
    action_option,
    chosen_units,
    names_argument,
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
    pytest_args: str,
    where: tuple[str, ...],
    files: tuple[str, ...],
) -> None:
    """Submit what is left to run of a recipe as jobs, group by group.

    With names, only these directories, or all trials of these cells (-: names from stdin). What waits for previous
    actions, and what the scheduler has already, is left for another time. On a terminal, it asks before it submits.
    """
    checked = open_recipe(recipe)
    from pytest_aorta.workflow.clusters import Configuration
    from pytest_aorta.workflow.jobs import JOBS, Target
    from pytest_aorta.workflow.project import Project
    from pytest_aorta.workspace.atomic import locked

    project = Project(checked, registry_files(files))
    configuration = Configuration.of_project(checked.root)
    found = configuration.cluster(cluster)
    target = Target(checked, found, configuration.launchers_on(found.name))
    arguments = [*(f"--aorta-registry-file={Path(file).absolute()}" for file in files), *shlex.split(pytest_args)]
    try:
        if not dry_run:
            (checked.index / JOBS).mkdir(parents=True, exist_ok=True)
        with locked(checked.index / JOBS):  # one submission at a time
            project.open(is_submitting=not dry_run)
            warn_of(project.problems)
            only, actions = chosen_units(names, project), project.actions(action)
            met = units_where(project, actions, only, typed_conditions(where))
            planned, left = [], max_jobs
            for each in actions:
                chosen = only if met is None else met[each.name]
                planned.append(_planned(project, target, each, chosen, left, arguments))
                left = None if left is None else left - planned[-1].count
            if not dry_run:
                project.save()
            _report(target, planned)
            jobs = [job for each in planned for job in each.jobs]
            if dry_run:
                _show(jobs)
            elif jobs and (sure or _is_confirmed(target, jobs)):
                _submit(target, jobs)
    except OSError as error:
        raise RequestError(f"{checked.index / JOBS} cannot be written: {error.strerror}") from None


def _planned(
    project: Project,
    target: Target,
    action: Action,
    only: set[str] | None,
    limit: int | None,
    arguments: Sequence[str],
) -> _Planned:
    from pytest_aorta.common.texts import identifier
    from pytest_aorta.triage import GOALS
    from pytest_aorta.workflow.commands import shell_commands
    from pytest_aorta.workflow.groups import check_whole
    from pytest_aorta.workflow.jobs import command_lines, plan_jobs, pytest_line

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

    units, others = project.runnable(action, only)
    words = {word for each in arguments for word in re.split("[=,]", each)}
    until_decided = action.table.until_decided or bool(words & GOALS)
    waves = project.waves(action, units, until_decided=action.is_matrix and until_decided)
    groups = [(number, group) for number, wave in enumerate(waves) for group in wave]
    check_whole(action, [group for _, group in groups], project.units(action), value_of)
    if limit is not None and len(groups) > limit:
        others["left for another time"] = sum(len(group) for _, group in groups[limit:])
        groups = groups[:limit]
    jobs = [
        replace(job, wave=number)
        for number, wave in groupby(groups, lambda each: each[0])
        for job in plan_jobs(target, action, [group for _, group in wave], commands, items)
    ]
    if not action.is_matrix:
        key_of = project.key_of(action)
        for task in (task for job in jobs for task in job.job.tasks):
            task.keys = tuple(map(key_of, task.units))
    return _Planned(action, jobs, others)


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
