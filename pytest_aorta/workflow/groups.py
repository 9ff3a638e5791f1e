"""Groups of an action's units, one job each, and the runs of a command on them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, groupby, islice
from pathlib import Path

from pytest_aorta.common.conditions import Json, element, sorted_by
from pytest_aorta.common.texts import identifier
from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.recipe import Action, Group, JobResources, Recipe, takes_all

#: A directory's name to its value.
ValueOf = Callable[[str], Json]


def included(group: Group, directories: Sequence[str], value_of: ValueOf) -> list[str]:
    """The directories that match any selector; all directories without selectors."""
    if not group.include:
        return list(directories)
    return [name for name in directories if any(one.selects(value_of(name), name) for one in group.include)]


def grouped(
    group: Group,
    directories: Sequence[str],
    value_of: ValueOf,
    is_left: Callable[[str], bool] = lambda name: True,
    *,
    of_trials: bool = False,
) -> Iterator[list[str]]:
    """Sort directories by name, then by key; split them into groups where keys differ, then by size.

    ``is_left``: whether to put a directory into a group; called only for groups that the caller takes.

    ``of_trials``: the directories are trials, ``CELL/INDEX``. They are sorted by rounds instead of names, and each
    group gets as many trials of each cell as any other, unless there are keys to sort by: a group runs on a node of its
    own, and a cell that ran on one node alone could not be told from that node.
    """
    names = sorted(directories, key=_round) if of_trials else sorted(directories)
    keys: dict[str, list[Json]] = {}
    if group.sort_by:
        keys = {name: [element(value_of(name), pointer, name) for pointer in group.sort_by] for name in names}
        names = sorted_by(keys)
    if group.reverse_sort:
        names.reverse()
    size = group.maximum_size or max(1, len(names))
    if of_trials and not keys:
        yield from _mixed(names, size)
        return
    parts = [names]
    if group.split_by_sort_key:
        parts = [list(part) for _, part in groupby(names, key=lambda name: _hashable(keys.get(name, [])))]
    for part in parts:
        left = filter(is_left, part)
        while names := list(islice(left, size)):
            yield names


def _round(unit: str) -> tuple[int, str]:
    """Sort key: trials in rounds, with the cells of a round in an order that is random but reproducible."""
    return int(unit.rpartition("/")[2]), hashlib.sha256(unit.encode()).hexdigest()


def _mixed(units: Sequence[str], size: int) -> list[list[str]]:
    """Trials in rounds, dealt to groups of at most ``size`` like cards: cell by cell, one to each group in turn.

    With fewer trials of each cell than groups, these are parts of the rounds.
    """
    cells: dict[str, list[str]] = {}
    for unit in units:
        cells.setdefault(unit.rpartition("/")[0], []).append(unit)
    count = math.ceil(len(units) / size)
    if max(map(len, cells.values()), default=0) < count:
        return [[*units[start : start + size]] for start in range(0, len(units), size)]
    dealt = [*chain.from_iterable(cells.values())]
    place = {unit: number for number, unit in enumerate(units)}
    return [sorted(dealt[first::count], key=place.__getitem__) for first in range(count)]


#: Trials of each cell in the first wave: no fewer decide and confirm a cure, not even of a fault that always comes.
FIRST_WAVE = 8


def next_wave(units: Sequence[str], size: int | None, over: int) -> list[str]:
    """The trials ``CELL/INDEX`` to run before the next check whether all cells are decided.

    As many as are ``over``, so that there are few waves, and at most twice as many trials run as one after the other
    would. ``size``: of the largest group, which decides by itself as it goes; without it, all are one wave.
    """
    ordered = sorted(units, key=_round)
    cells = {unit.rpartition("/")[0] for unit in ordered}
    return ordered[: max(FIRST_WAVE * len(cells), over, size or len(ordered))]


def _hashable(key: Json) -> object:
    return tuple(map(_hashable, key)) if isinstance(key, list) else (isinstance(key, bool), key)


def whole_groups(action: Action, units: Sequence[str], value_of: ValueOf) -> list[list[str]]:
    """The groups of all units that an action includes, complete or not."""
    group = action.table.group
    return list(grouped(group, included(group, units, value_of), value_of, of_trials=action.is_matrix))


@dataclass(frozen=True)
class CommandUnit:
    """One run of a command on the units of a group: several for ``{directories}``, else one."""

    action: Action
    units: tuple[str, ...]

    @property
    def name(self) -> str:
        """``compare[dir0]``; ``compare[dir0+3]`` for a group of four; ``compare[all]`` for a whole matrix."""
        cell, _, trial = self.units[0].rpartition("/")
        first = (f"{identifier(cell)}-{trial}" if cell else identifier(trial)) if self.units[0] else "all"
        more = len(self.units) - 1
        return f"{identifier(self.action.name)}[{first}{f'+{more}' if more else ''}]"


def command_units(recipe: Recipe, action: Action, units: Sequence[str], value_of: ValueOf) -> Iterator[CommandUnit]:
    """The runs of a command, in the order of their groups."""
    try:
        names = included(action.table.group, units, value_of)
        groups = grouped(action.table.group, names, value_of)
        for other in recipe.by_name[action.name]:
            if other is action:
                break
            both = set(names) & set(included(other.table.group, units, value_of))
            if both:
                raise RequestError(
                    f"{min(both)!r} would be run multiple times: the action {action.name!r} of line {other.line} "
                    "includes it as well; the groups of one name must not overlap"
                )
    except RequestError as error:
        raise recipe.error(action, str(error)) from None
    for group in groups:
        if takes_all(action.table.command or ""):
            yield CommandUnit(action, tuple(group))
        else:
            yield from (CommandUnit(action, (name,)) for name in group)


def action_variables(
    action: str, resources: JobResources, directories: int, workspace: Path, cluster: str
) -> dict[str, str]:
    """Row's variables for a job over this many directories, without those for resources that it does not ask for."""
    minutes = math.ceil(resources.total_walltime(directories) / timedelta(minutes=1))
    variables: dict[str, int | str | None] = {
        "ACTION_CLUSTER": cluster,
        "ACTION_NAME": action,
        "ACTION_WORKSPACE_PATH": str(workspace),
        "ACTION_PROCESSES": resources.total_processes(directories),
        "ACTION_WALLTIME_IN_MINUTES": minutes,
        "ACTION_PROCESSES_PER_DIRECTORY": resources.processes.per_directory if resources.processes else None,
        "ACTION_THREADS_PER_PROCESS": resources.threads_per_process,
        "ACTION_GPUS_PER_PROCESS": resources.gpus_per_process,
    }
    return {name: str(value) for name, value in variables.items() if value is not None}
