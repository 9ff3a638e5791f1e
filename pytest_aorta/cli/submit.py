"""``pytest-aorta submit``: jobs for what a recipe has left to run."""

from __future__ import annotations

import math
import platform
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from pytest_aorta.workflow.recipe import Action, Cost, Recipe

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
        nonlocal checked
        checked, down = _swept(checked, target, action, is_dry=dry_run)
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
                planned.append(_planned(project, target, each, chosen, left, arguments, down, watched))
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


def _swept(recipe: Recipe, target: Target, pattern: str, *, is_dry: bool) -> tuple[Recipe, dict[str, str]]:
    """The recipe with the nodes that its sweeps are for, new ones last, and the states of those that take no jobs.

    Raises:
        RequestError: there is no node, or the scheduler does not answer.
    """
    from pytest_aorta.workflow import slurm
    from pytest_aorta.workflow.recipe import SubmitOptions, nodes_file
    from pytest_aorta.workspace.atomic import write_text

    actions, down = list(recipe.actions), dict[str, str]()
    for number, each in enumerate(actions):
        if each.nodes is None or not fnmatchcase(each.name, pattern):
            continue
        table, states = each.table, {platform.node(): "idle"}
        trials = table.trials // max(1, len(each.nodes))
        if target.cluster.scheduler == "slurm":
            named = table.submit_options.get(target.cluster.name, SubmitOptions()).partition
            partition = target.cluster.choose_partition(named, table.resources, trials)
            states = slurm.nodes(None if partition is None else partition.name, table.nodes)
        nodes = tuple(dict.fromkeys([*each.nodes, *(name for name in states if slurm.takes_jobs(states[name]))]))
        if not nodes:
            found = ", ".join(f"{name} is {state}" for name, state in states.items()) or "there is none"
            raise RequestError(f"action {each.name!r} has no node that takes jobs: {found}")
        down |= {name: states.get(name, "not there") for name in {*nodes, *states}}
        actions[number] = replace(each, nodes=nodes, table=table.model_copy(update={"trials": trials * len(nodes)}))
        if nodes != each.nodes and not is_dry:
            write_text(nodes_file(recipe.file, each.name), "".join(f"{name}\n" for name in nodes))
    down = {name: state for name, state in down.items() if state == "not there" or not slurm.takes_jobs(state)}
    return replace(recipe, actions=tuple(actions)), down


def _planned(
    project: Project,
    target: Target,
    action: Action,
    only: set[str] | None,
    limit: int | None,
    arguments: Sequence[str],
    down: Mapping[str, str],
    watched: float | None = None,
) -> _Planned:
    """``down``: nodes that take no jobs; ``watched``: since when, for what jobs since then have not left for good."""
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

    def alike(groups: Sequence[Sequence[str]]) -> Iterator[tuple[Action, list[list[str]]]]:
        """Groups with the action as it asks for their memory and their node."""
        again = action.table.retry.again("oom")
        parts: dict[tuple[float, str | None], list[list[str]]] = {}
        for group in groups:
            own: dict[tuple[float, str | None], list[str]] = {}
            for unit in group:
                times = min(lost.get(unit, []).count("oom"), again.times)
                own.setdefault(((again.memory or 1) ** times, action.node_of(unit)), []).append(unit)
            for asked, part in own.items():
                parts.setdefault(asked, []).append(part)
        for (factor, node), same in parts.items():
            yield _asking(action, target, factor, node), same

    units, others = project.runnable(action, only)
    for node in sorted(down.keys() & set(action.nodes or ())):
        there = [unit for unit in units if action.node_of(unit) == node]
        units = [unit for unit in units if unit not in there]
        if there:
            others[f"for {node}, which is {down[node]}"] = len(there)
    words = {word for each in arguments for word in re.split("[=,]", each)}
    ends_early = action.table.ends_early or bool(words & {*GOALS, "failures"})
    lost = losses(recipe.index, action.name)
    if watched is not None:
        since, count = losses(recipe.index, action.name, watched), len(units)
        units = [unit for unit in units if _is_tried_again(action, since.get(unit, ()))]
        if given_up := count - len(units):
            others["not tried again (pytest-aorta why NAME)"] = given_up
    wave = units
    if action.is_matrix and ends_early and not action.table.group.submit_whole:
        wave = project.next_wave(action, units)
    if later := len(units) - len(wave):
        others["in later waves"] = later
    groups = project.groups(action, wave)
    check_whole(action, groups, project.units(action), value_of)
    if limit is not None and len(groups) > limit:
        others["left for another time"] = sum(len(group) for group in groups[limit:])
        groups = groups[:limit]
    jobs = [job for asking, same in alike(groups) for job in plan_jobs(target, asking, same, commands, items)]
    if not action.is_matrix:
        key_of = project.key_of(action)
        for task in (task for job in jobs for task in job.job.tasks):
            task.keys = tuple(map(key_of, task.units))
    return _Planned(action, jobs, others)


def _is_tried_again(action: Action, losses: Sequence[str]) -> bool:
    return not losses or (bool(losses[-1]) and losses.count(losses[-1]) <= action.table.retry.again(losses[-1]).times)


def _asking(action: Action, target: Target, memory: float, node: str | None) -> Action:
    """An action with so many times its memory, and only for a node."""
    from pytest_aorta.workflow.recipe import SubmitOptions

    update: dict[str, Any] = {"resources": action.table.resources.with_memory(memory)}
    if node is not None and target.cluster.scheduler == "slurm":
        cluster = target.cluster.name
        own = action.table.submit_options.get(cluster, SubmitOptions())
        on_it = own.model_copy(update={"custom": (*own.custom, f"--nodelist={node}")})
        update["submit_options"] = {**action.table.submit_options, cluster: on_it}
    return replace(action, table=action.table.model_copy(update=update))


def _report(target: Target, planned: Sequence[_Planned]) -> None:
    for each in planned:
        units = sum(len(task.units) for job in each.jobs for task in job.job.tasks)
        kind = "trial" if each.action.is_matrix else each.action.table.each
        what = f"{units} directories" if kind == "directory" and units != 1 else _counted(units, kind)
        new = f"{_counted(each.count, 'job')} ({what}) on {target.cluster.name}, up to {_cost(each.jobs)}"
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
    with interrupts_noted() as interrupted:
        for planned in jobs:
            if interrupted():
                _say(f"interrupted: {done} of {total} submitted, which are recorded; the rest is not")
                raise click.exceptions.Exit(_INTERRUPTED)
            try:
                job = submit_job(target, planned)
            except RequestError as error:
                why = ""
                if isinstance(error, LostAnswer):
                    name = planned.job.name
                    why = f". Whether it has job {name} is looked up by this name the next time (pytest-aorta jobs)"
                raise RequestError(f"{error}{why}; {done} of {total} were submitted before, the rest was not") from None
            done += 1
            _say(f"{job.cluster}/{job.number}  {job.name}")


def _cost(jobs: Sequence[PlannedJob]) -> Cost:
    from pytest_aorta.workflow.recipe import Cost

    return sum((job.cost for job in jobs), Cost())


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _say(text: str, *, nl: bool = True) -> None:
    click.echo(printable(text), nl=nl)
