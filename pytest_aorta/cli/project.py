"""Commands on a recipe and its workspace: init, status, why, scan, clean, show."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from pytest_aorta.cli.shared import (
    COLORS,
    action_option,
    chosen_units,
    cluster_option,
    columns,
    echo_table,
    is_chosen,
    json_option,
    names_argument,
    open_recipe,
    project_options,
    state_options,
    units_where,
    warn_of,
    where_option,
)
from pytest_aorta.common.conditions import TypedCondition, check_pointer, element, selected
from pytest_aorta.common.texts import counted, one_line, printable
from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.clusters import Configuration
from pytest_aorta.workflow.finding import RecipeError, find_recipe
from pytest_aorta.workflow.jobs import read_jobs
from pytest_aorta.workflow.known import Workspace
from pytest_aorta.workflow.project import THREADS, Project, Scan, State
from pytest_aorta.workflow.recipe import Action, takes_all
from pytest_aorta.workspace.atomic import staged_text

_RECIPE = """\
# Run it: pytest aorta.toml
# What is done, and what is left: pytest-aorta status

[workspace]
path = {path}
{value_file}  # of each directory, for conditions, sort keys and {{/json/pointers}} in commands

# Trials of a command; their results are in {workspace}/example/. This one fails sometimes: write your own in its place.
[[action]]
name = "example"
command = "python3 -c 'import random; exit(random.random() < 0.3)'"
trials = 5  # in each cell; a cell for each of the mitigations, see pytest-aorta list mitigations
mitigations = ["none", "OMP_NUM_THREADS=1"]
# timeout = "5m"
# fail_on = "loss nan"

# A command on each directory of {workspace}/; it is completed when its products are there.
# [[action]]
# name = "one"
# command = "echo hello > {{workspace_path}}/{{directory}}/one.txt"
# products = ["one.txt"]
"""


@click.command("init")
@click.option("-w", "--workspace", default="workspace", metavar="NAME", help="Folder of the directories, in DIR.")
@click.option("--signac", is_flag=True, help="Read the values of signac: signac_statepoint.json.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def init(workspace: str, signac: bool, folder: Path) -> None:
    if signac and workspace != "workspace":
        raise RequestError("--signac and --workspace: use one of them; the workspace of signac is called workspace")
    if Path(workspace).is_absolute() or ".." in Path(workspace).parts or not workspace.strip():
        raise RequestError(f"--workspace {workspace!r}: expected the name of a folder in DIR")
    try:
        existing = find_recipe(folder)
    except RecipeError:
        pass
    else:
        raise RequestError(f"{existing} is there already; a recipe is for all folders below its own")
    if (folder / ".aorta").exists():
        raise RequestError(f"{folder / '.aorta'} is there already, the index of another recipe; remove it first")
    file = folder / "aorta.toml"
    value_file = 'value_file = "signac_statepoint.json"' if signac else '# value_file = "value.json"'
    path = json.dumps(workspace, ensure_ascii=False)
    try:
        (folder / workspace).mkdir(parents=True, exist_ok=True)
        text = _RECIPE.format(workspace=workspace, path=path, value_file=value_file)
        with staged_text(file, text) as temporary:
            os.link(temporary, file)  # never over one that has come in the meantime
    except OSError as error:
        raise RequestError(f"{file} cannot be made: {error.strerror}") from None
    click.echo(f"recipe: {file}")


@click.command("status")
@names_argument("[DIRECTORY | CELL | -]...")
@action_option("Actions to show; * and ? are wildcards.")
@click.option("--all", "show_all", is_flag=True, help="Also show actions without directories and trials.")
@state_options("Only actions with {} units; combine these flags to see more.")
@where_option
@click.option("--short", is_flag=True, help="One line per action, separated by tabs, without a heading.")
@json_option
@click.option("--no-header", is_flag=True, help="Omit the heading of the table.")
@project_options()
def status(
    project: Project,
    names: tuple[str, ...],
    action: str,
    show_all: bool,
    where: tuple[TypedCondition, ...],
    short: bool,
    as_json: bool,
    no_header: bool,
    **flags: bool,
) -> None:
    """Uses the recipe of the working directory, or the nearest one above. Counts directories of commands and trials of
    workloads; with names, only these (-: names from stdin). Does not look for products on disk: pytest-aorta scan does.
    """
    actions = project.actions(action)
    chosen = units_where(project, actions, chosen_units(names, project), where)
    shown: list[dict[str, Any]] = []
    texts = [["Action", *map(str.capitalize, COLORS), "Remaining cost"]]
    for each in actions:
        counts, cost = project.summary(each, chosen[each.name])
        if not show_all and not any(counts[state] and is_chosen(state, flags, each) for state in COLORS):
            continue
        running = project.running(each)
        if running:
            states = project.states(each, chosen[each.name])
            running = {unit for unit in running if states.get(unit) == "submitted"}
        numbers = {state: f"{counts[state]:,}" for state in COLORS}
        if running:
            numbers["submitted"] += f" ({len(running):,} run)"
        texts.append([each.name, *numbers.values(), str(cost)])
        remaining = {"cpu_hours": cost.cpu_hours, "gpu_hours": cost.gpu_hours}
        shown.append(
            {
                "name": each.name,
                **{state: counts[state] for state in COLORS},
                "remaining": remaining,
                "running": len(running),
            }
        )
    project.workspace.save()
    if as_json:
        click.echo(json.dumps({"actions": shown}, indent=1))
    elif short:
        for row in shown:
            hours = [f"{hours:.2f}" for hours in row["remaining"].values()]
            click.echo("\t".join([one_line(row["name"]), *(str(row[state]) for state in COLORS), *hours]))
    elif not shown:
        why = "none has any of these; --all shows all of them" if actions else "the recipe has none"
        click.echo(f"No actions match: {why}.", err=True)
    else:
        lines = columns(texts, right=range(1, len(texts[0])), colors=dict(enumerate(COLORS.values(), 1)))
        echo_table(lines, has_heading=not no_header)


@click.command("why")
@names_argument("DIRECTORY | CELL | TRIAL...")
@action_option("Of these actions; * and ? are wildcards.")
@project_options()
def why(project: Project, names: tuple[str, ...], action: str) -> None:
    """Shows what an action waits for, what the scheduler says of its job, and the last output of a failed command."""
    only = chosen_units(names, project)
    for each in project.actions(action):
        states = project.states(each, only)
        for unit, state in states.items():
            heading = click.style(state, fg=COLORS[state])
            click.echo(f"{one_line(f'{each.name} on {unit}' if unit else each.name)}: {heading}")
            for line in _reasons(project, each, unit, state):
                click.echo(f"  {printable(line)}")
            for line in _repeats(project, each, unit):
                click.echo(f"  {printable(line)}")
        for unit in sorted((only or set()) & set(project.units(each)) - states.keys()):
            left_out = project.progress[each.name].get(unit, "not_needed") == "not_needed"
            what = "its cell is decided" if each.is_matrix and left_out else f"{each.name} does not include it"
            click.echo(f"{one_line(f'{each.name} on {unit}')}: not run, because {what}")
    project.workspace.save()


def _reasons(project: Project, action: Action, unit: str, state: State) -> Iterator[str]:
    if state == "waiting":
        yield from project.waits_for(action, unit)
        return
    if state == "submitted":
        for job in project.jobs:
            for number in job.tasks_of(action.name, unit):
                if not job.tasks[number].is_over:
                    yield f"job {job.cluster}/{job.identity(number)}: {job.state(number)}"
        return
    yield from _rest_of_group(project, action, unit)
    if state == "stale" and action.is_matrix:
        yield "its record is of another request or other code; it is run again"
    elif state == "stale":
        yield "the command or the value has changed since it was completed; it is run again"
        yield f"to keep it: pytest-aorta scan --accept -a {action.name} {unit}"
    elif action.is_matrix:
        try:
            record = json.loads((file := project.record_file(action, unit)).read_bytes())
        except (OSError, ValueError):
            yield "nothing keeps it from being run"
            return
        message = str((record.get("failure") or {}).get("message") or "").strip().splitlines()
        yield f"{record.get('exit_status')}{f': {message[0]}' if message else ''}"
        yield f"its record: {file.relative_to(project.recipe.root)}"
    elif state == "failed":
        yield from _last_output(project, action, unit)
        yield "the next run and the next submission try it again"
    elif state == "eligible":
        yield "nothing keeps it from being run"


def _repeats(project: Project, action: Action, unit: str) -> Iterator[str]:
    """Jobs that began a command more than once: SLURM restarts a job that has lost its node."""
    for job in read_jobs(project.recipe.index):
        for task in job.tasks_of(action.name, unit):
            number = 0 if takes_all(action.table.command or "") else job.tasks[task].units.index(unit)
            starts = [line.partition(" ") for line in job.noted("began", task)]
            hosts = [host for of, _, host in starts if of == str(number)]
            if len(hosts) > 1 and not action.is_matrix:
                where = f"{len(hosts)} times: on {', on '.join(hosts)}"
                yield f"job {job.cluster}/{job.identity(task)} has begun it {where}"


def _rest_of_group(project: Project, action: Action, unit: str) -> Iterator[str]:
    """Why a group that has to be submitted whole cannot be."""
    group = project.whole_group(action, unit)
    runnable, _ = project.runnable(action, set(group)) if len(group) > 1 else (group, {})
    if others := [each for each in group if each not in runnable]:
        more = f" ({len(others) - 1} more)" if len(others) > 1 else ""
        how = project.states(action, {others[0]}).get(others[0], "not needed")
        yield f"its group of {len(group)} is submitted as a whole only, and {others[0]} is {how}{more}"


def _last_output(project: Project, action: Action, unit: str) -> Iterator[str]:
    """The last lines printed by a failed command, here or in a job."""
    text = project.workspace.known.outputs.get(action.name, {}).get(unit, "")
    jobs = [(job, number) for job in read_jobs(project.recipe.index) for number in job.tasks_of(action.name, unit)]
    if not text and jobs:
        job, number = jobs[-1]
        yield f"job {job.cluster}/{job.identity(number)}: {job.state(number)}"
        output = job.output(number)
        text = output.read_text(errors="replace") if output.is_file() else ""
    yield from (f"| {line}" for line in text.splitlines()[-10:])


@click.command("scan")
@names_argument("[DIRECTORY | CELL | -]...")
@action_option("Actions to look for; * and ? are wildcards.")
@click.option("--prune", is_flag=True, help="Also remove completed entries that are no longer on disk.")
@click.option("--accept", is_flag=True, help="Accept products of stale commands as up to date.")
@click.option(
    "--io-threads",
    type=click.IntRange(1),
    default=THREADS,
    show_default=True,
    envvar="ROW_IO_THREADS",
    metavar="N",
    help="Number of directories to look at in parallel.",
)
@click.option("--no-progress", is_flag=True, envvar="ROW_NO_PROGRESS", help="Show no progress bar, even on a terminal.")
@project_options(rebuilds=False)
def scan(
    project: Project,
    names: tuple[str, ...],
    action: str,
    prune: bool,
    accept: bool,
    no_progress: bool,
    io_threads: int,
) -> None:
    """pytest updates the index as it runs. Scan after other changes: copied results, a removed index, edited value
    files. With names, looks at only these directories or cells (-: names from stdin). Changes only the index.
    """
    recipe, only = project.recipe, chosen_units(names, project)
    search = Scan(project, project.actions(action), only, accepts=accept)
    hidden = no_progress or not sys.stderr.isatty()
    length = search.expected  # all trials of the recipe, on disk or not
    steps = max(1, length // 200)
    with click.progressbar(
        length=length, label="Scanning", file=sys.stderr, hidden=hidden, show_pos=True, update_min_steps=steps
    ) as bar:
        search.run(lambda: bar.update(1), io_threads)
        bar.update(max(0, length - bar.pos))
    try:
        changed, removed = project.workspace.record(
            search.found, lambda name, unit: prune and search.is_gone(name, unit)
        )
    except OSError as error:
        raise RequestError(f"the index cannot be written: {error.strerror}: {recipe.index}") from None
    warn_of(search.unreadable)
    click.echo(f"index: {changed:,} new or changed{f', {removed:,} removed' if prune else ''}")


@click.command("clean")
@click.option("--completed", is_flag=True, help="Delete completions; pytest-aorta scan finds them again.")
@click.option("--directories", is_flag=True, help="Delete the list of directories and their values.")
@click.option("--submitted", is_flag=True, help="Delete the submitted jobs.")
@click.option("--force", is_flag=True, help="Delete even while jobs are submitted or actions run.")
def clean(completed: bool, directories: bool, submitted: bool, force: bool) -> None:
    """Without an option, deletes the whole index. A scan cannot restore failures of commands and jobs."""
    recipe = open_recipe()
    everything = not (completed or directories or submitted)
    jobs = read_jobs(recipe.index, only_open=True) if submitted or everything else []
    count = sum(not task.is_over for job in jobs for task in job.tasks)
    if count and not force:
        raise RequestError(
            f"{counted(count, 'submitted job')} would be forgotten, and could be submitted again; --force does it "
            "nevertheless"
        )
    workspace = Workspace(recipe)
    if (completed or everything) and not force and workspace.is_growing:
        raise RequestError("actions of this recipe run now; wait for their end, or --force")
    workspace.clean(completed=completed or everything, directories=directories or everything)
    for job in jobs:  # jobs that start later do nothing; printed output stays
        (job.folder / "job.json").unlink()


@click.group("show")
def show() -> None:
    pass


class _Row(NamedTuple):
    """A directory, a cell or a trial, with the ``state`` of ``action`` there.

    ``counts``: trials of a cell by state. ``group``: the number of its job, submitted or not.
    """

    name: str
    values: dict[str, Any]
    action: str | None = None
    state: State | None = None
    counts: dict[State, int] = {}
    job: str | None = None
    group: int = 0


def _rows(
    what: str,
    project: Project,
    only: set[str] | None,
    action: str | None,
    pointers: Sequence[str],
    where: Sequence[TypedCondition],
    flags: dict[str, bool],
) -> Iterator[_Row]:
    def elements(value_of: Callable[[str], Any], name: str) -> dict[str, Any]:
        value = value_of(name) if pointers else None
        return {pointer: element(value, pointer, name) for pointer in pointers}

    if action is None:  # directories
        if any(flags.values()):
            raise RequestError("states are those of an action: add --action PATTERN")
        own = project.workspace.value_of
        names = [name for name in project.directories if only is None or name in only]
        for name in selected(names, own, where, "--where") if where else names:
            yield _Row(name, elements(own, name))
        return
    actions = [each for each in project.actions(action) if each.is_matrix == (what != "directories")]
    if not actions and what == "directories":
        raise RequestError(f"{action!r} matches no action with a command; for workloads: show cells, show trials")
    if not actions:
        there_is = "the recipe has" if action == "*" else f"{action!r} matches"
        raise RequestError(f"{there_is} no action with a workload; for commands: show directories")
    chosen, number = units_where(project, actions, only, where), 0
    for each in actions:
        states, value_of = project.states(each, chosen[each.name]), project.value_of(each)
        if what == "cells":
            counts: dict[str, Counter[State]] = {}
            for unit, state in states.items():
                counts.setdefault(unit.rpartition("/")[0], Counter())[state] += 1
            for cell, cell_counts in counts.items():
                if any(is_chosen(state, flags, each) for state in cell_counts):
                    of_all = {state: cell_counts[state] for state in COLORS}
                    yield _Row(cell, elements(value_of, cell), each.name, counts=of_all)
            continue
        jobs = project.submitted.get(each.name, {})
        shown = [unit for unit, state in states.items() if is_chosen(state, flags, each)]
        for group in [shown] if each.is_matrix else project.groups(each, shown):
            number += 1
            for unit in group:
                yield _Row(unit, elements(value_of, unit), each.name, states[unit], job=jobs.get(unit), group=number)


def _add_listing(what: str, heading: str, pattern: str | None, shown: str, text: str) -> None:
    @show.command(what, help=text)
    @names_argument("[NAME | -]...")
    @action_option("Of these actions; * and ? are wildcards.", pattern)
    @state_options(f"Only {shown} with the state {{}}; combine these flags to see more.")
    @click.option(
        "--value",
        "pointers",
        multiple=True,
        metavar="POINTER",
        help="Show an element of the values, such as /config/lr; repeatable.",
    )
    @click.option("--short", is_flag=True, help="Print only names, one per line.")
    @json_option
    @click.option("--no-header", is_flag=True, help="Omit the heading of the table.")
    @click.option(
        "-n", "--n-groups", "groups", type=click.IntRange(1), metavar="N", help="Show only the first N groups."
    )
    @click.option("--no-separate-groups", is_flag=True, help="No empty lines between groups.")
    @where_option
    @project_options()
    def command(
        project: Project,
        names: tuple[str, ...],
        action: str | None,
        pointers: tuple[str, ...],
        where: tuple[TypedCondition, ...],
        short: bool,
        as_json: bool,
        no_header: bool,
        groups: int | None,
        no_separate_groups: bool,
        **flags: bool,
    ) -> None:
        for pointer in pointers:
            try:
                check_pointer(pointer)
            except ValueError as error:
                raise RequestError(f"--value {error}") from None
        counted_rows = _rows(what, project, chosen_units(names, project), action, pointers, where, flags)
        rows = [row for row in counted_rows if groups is None or row.group <= groups]
        project.workspace.save()
        if as_json:
            plain: list[dict[str, Any]] = []
            for row in rows:
                own: dict[Any, Any] = {**row.counts} or {"state": row.state, "job": row.job}
                plain.append({"name": row.name, "action": row.action, **own, "values": row.values})
            click.echo(json.dumps({what: plain}, indent=1))
        elif short:
            for name in dict.fromkeys(row.name for row in rows):
                click.echo(one_line(name))
        elif not rows:
            click.echo(f"No {what} match.", err=True)
        else:
            _echo_rows(heading, rows, has_heading=not no_header, is_separated=not no_separate_groups)


_add_listing(
    "directories",
    "Directory",
    None,
    "directories",
    "Directories of the workspace; with --action, the directories of an action, group by group.\n\n"
    "With names, only these (-: names from stdin).",
)
_add_listing(
    "trials",
    "Trial",
    "*",
    "trials",
    "Trials of the actions with a workload; with names of cells or trials, only these (-: names from stdin).",
)
_add_listing(
    "cells",
    "Cell",
    "*",
    "cells with trials",
    "Cells of the actions with a workload, with the number of trials in each state.",
)


def _echo_rows(heading: str, rows: Sequence[_Row], *, has_heading: bool, is_separated: bool) -> None:
    several, counts = len({row.action for row in rows}) > 1, rows[0].counts
    states: list[str] = [*counts] if counts else ["status" if rows[0].action else ""]
    headings = ["Action" if several else "", heading, *map(str.capitalize, states)]
    headings += ["Job ID" if rows[0].state else "", *(pointer or '""' for pointer in rows[0].values)]
    table = [headings]
    for row in rows:
        own = [f"{count:,}" for count in row.counts.values()] if counts else [row.state or ""]
        values = [json.dumps(value) for value in row.values.values()]
        table.append([(row.action or "") if several else "", row.name, *own, row.job or "", *values])
    lines = columns(table, right=range(2, 2 + len(states)) if counts else ())
    echo_table(lines[:1], has_heading=has_heading and (bool(rows[0].action) or bool(rows[0].values)))
    text = []  # written at once
    for row, before, line in zip(rows, [rows[0], *rows], lines[1:], strict=False):
        text += [""] if is_separated and row.group != before.group else []
        text.append(line if row.state is None else click.style(line, fg=COLORS[row.state]))
    click.echo("\n".join(text))


@show.command("collected")
@click.argument("path", type=click.Path(path_type=Path), default="results", metavar="[DIR | FILE]")
def collected(path: Path) -> None:
    """Findings of collectors in a results directory (default: results) or a trial file, and where they are."""
    from pytest_aorta.triage.starts import all_lines

    for line in all_lines(path):
        click.echo(printable(line))


@show.command("cluster")
@click.argument("name", required=False)
@cluster_option()
@click.option("--all", "everything", is_flag=True, help="All clusters, in the order of their trial.")
@click.option("--short", is_flag=True, help="Print only names, one per line.")
def show_cluster(name: str | None, cluster: str | None, everything: bool, short: bool) -> None:
    """The cluster of this host, or the named cluster, in the form of clusters.toml."""
    import tomlkit

    configuration = _configuration()
    for each in configuration.clusters if everything else (configuration.cluster(name or cluster),):
        plain = each.model_dump(exclude_defaults=True, exclude_none=True, mode="json")
        click.echo(each.name if short else tomlkit.dumps({"cluster": [plain]}))


@show.command("launchers")
@click.argument("name", required=False, metavar="[CLUSTER]")
@cluster_option()
@click.option("--all", "everything", is_flag=True, help="For all clusters.")
@click.option("--short", is_flag=True, help="Print only names, one per line.")
def show_launchers(name: str | None, cluster: str | None, everything: bool, short: bool) -> None:
    """The launchers of this cluster, or of the named cluster, in the form of launchers.toml."""
    import tomlkit

    configuration = _configuration()
    where = configuration.cluster(name or cluster).name
    here = configuration.launchers_on(where)
    for launcher, by_cluster in sorted(configuration.launchers.items()):
        chosen = by_cluster if everything else {where: here[launcher]}
        plain = {each: table.model_dump(exclude_none=True) for each, table in chosen.items()}
        click.echo(launcher if short else tomlkit.dumps({launcher: plain}))


def _configuration() -> Configuration:
    try:
        return Configuration.of_project(find_recipe(Path.cwd()).parent)
    except RecipeError:
        return Configuration.of_project(Path.cwd())


@show.command("nodes")
@click.argument("results", type=click.Path(path_type=Path), required=False, metavar="[DIR]")
@json_option
def show_nodes(results: Path | None, as_json: bool) -> None:
    """Compares nodes: which fail more often or are slower, with p values, and which to drain.

    Reads the trials in a results directory (default: of the recipe's action with each = "node").
    """
    from pytest_aorta.triage.reading import read_triage
    from pytest_aorta.triage.where import NODE_LEVEL, node_sentences, trials_needed

    if results is None:
        recipe = open_recipe()
        sweeps = [each.name for each in recipe.actions if each.nodes is not None]
        if len(sweeps) != 1:
            raise RequestError(
                f"{recipe.file} has {len(sweeps)} actions with each = 'node'; name the results directory"
            )
        results = recipe.directories / sweeps[0]
    nodes = read_triage(results)[0].nodes()
    if not nodes:
        raise RequestError(f"the trials in {results} ran on one node, or do not say where")
    if as_json:
        named = [node.name for node in nodes if node.reasons]
        click.echo(json.dumps({"nodes": [vars(node) for node in nodes], "drain": named, "level": NODE_LEVEL}, indent=1))
        return
    rows = [["Node", "Trials", "Not passed", "Step time"]]
    for node in nodes:
        time = "" if node.ratio is None else f"{node.ratio - 1:+.0%}"
        rows.append([node.name, f"{node.trials:,}", f"{node.bad:,}", time])
    lines = [*columns(rows, right=(1, 2, 3)), "", *map(one_line, node_sentences(nodes))]
    if not any(node.reasons for node in nodes):
        lines.append("No node stands out.")
    fewest, needed = min(node.trials for node in nodes), trials_needed(len(nodes))
    if fewest < needed:
        lines.append(
            f"A node that always fails stands out of {len(nodes)} from {needed} trials on; there are {fewest}."
        )
    click.echo("\n".join(lines))
