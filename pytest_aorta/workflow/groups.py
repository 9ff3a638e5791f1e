"""Directories of an action in groups; a group is what one job works on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.selectors import Pointer, Selector
from pytest_aorta.workflow.tables import PositiveWhole, Table
from pytest_aorta.workflow.values import Json, sort_keys, sorted_by

#: A directory's name to its value.
ValueOf = Callable[[str], Json]


class Group(Table):
    """How the directories of an action are selected, sorted and split, see ``grouped``."""

    include: tuple[Selector, ...] = ()
    sort_by: tuple[Pointer, ...] = ()
    reverse_sort: bool = False
    split_by_sort_key: bool = False
    maximum_size: PositiveWhole | None = None
    submit_whole: bool = False


def included(group: Group, directories: Sequence[str], value_of: ValueOf) -> list[str]:
    """The directories that any of the selectors selects; all where there are none.

    Raises:
        RecipeError: an element that a condition names is missing, or cannot be compared.
    """
    if not group.include:
        return list(directories)
    return [name for name in directories if any(one.selects(value_of(name), name) for one in group.include)]


def grouped(group: Group, directories: Sequence[str], value_of: ValueOf) -> list[list[str]]:
    """Groups of the given directories: sorted by name, then by key, split where keys differ, then by size.

    Raises:
        RecipeError: an element to sort by is missing, or has no order.
    """
    if not directories:
        return []
    names = sorted(directories)
    keys = {name: sort_keys(value_of(name), group.sort_by, name) for name in names} if group.sort_by else {}
    if keys:
        names = sorted_by(keys)
    if group.reverse_sort:
        names.reverse()
    parts = [names]
    if keys and group.split_by_sort_key:
        parts = [list(part) for _, part in groupby(names, key=lambda name: _hashable(keys[name]))]
    size = group.maximum_size or len(names)
    return [part[start : start + size] for part in parts for start in range(0, len(part), size)]


def check_whole(
    group: Group, action: str, eligible: Sequence[Sequence[str]], directories: Sequence[str], value_of: ValueOf
) -> None:
    """With ``submit_whole``, each eligible group has to be one of those that all included directories form.

    Raises:
        RecipeError: one is not.
    """
    if not group.submit_whole:
        return
    whole = {frozenset(names) for names in grouped(group, included(group, directories, value_of), value_of)}
    for names in eligible:
        if frozenset(names) not in whole:
            raise RecipeError(
                f"action {action!r} has submit_whole, and the group of {names[0]!r} with {len(names)} directories is "
                "only a part of a whole one; select all of its directories, or wait until all are eligible"
            )


def _hashable(key: Json) -> object:
    """Equal for keys that compare as equal: 1 and 1.0 do, 1 and true do not."""
    if isinstance(key, list):
        return tuple(map(_hashable, key))
    return (isinstance(key, bool), key)
