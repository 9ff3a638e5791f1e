"""Which of the collected items are run: those of a shard, and those that meet conditions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import pytest

from pytest_aorta.common.conditions import selected
from pytest_aorta.plugin.items.trial_item import TrialItem
from pytest_aorta.plugin.refusals import refuse
from pytest_aorta.plugin.run import Run
from pytest_aorta.plugin.xdist_roles import is_worker
from pytest_aorta.workflow.requests import trial_value
from pytest_aorta.workflow.shards import Durations, read_durations, shards_of

if TYPE_CHECKING:
    from pytest_aorta.common.conditions import Json
    from pytest_aorta.plugin.recipes.items import CommandItem

#: Whether there were items, and all of them are those of other shards.
ALL_ELSEWHERE = pytest.StashKey[bool]()

#: What was refused, in a worker of xdist: the whole run ends as for a wrong option.
REFUSED = pytest.StashKey[str]()

#: What the conditions are given with.
_WHERE = "--aorta-where"


def select_items(config: pytest.Config, items: list[pytest.Item], run: Run) -> None:
    """Deselect what other shards run, then what does not meet the conditions of ``--aorta-where``.

    Raises:
        pytest.UsageError: the durations cannot be read, or no item can be held against a condition.
    """
    kept = list(items)
    if run.selection.shard is not None:
        kept = shard_of(kept, *run.selection.shard, durations_of(run))
        config.stash[ALL_ELSEWHERE] = bool(items) and not kept
    if run.selection.where:
        # Against all: whether an element exists does not depend on the shard.
        fitting = {id(item) for item in _fitting(items, run)}
        kept = [item for item in kept if id(item) in fitting]
    if len(kept) < len(items):
        left = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
        items[:] = kept


def select_items_of_worker(config: pytest.Config, items: list[pytest.Item], run: Run) -> None:
    """As ``select_items``; what is refused goes to xdist's controller, which an error here would only confuse."""
    try:
        select_items(config, items, run)
    except pytest.UsageError as error:
        items.clear()
        config.workeroutput["aorta_refused"] = str(error)  # type: ignore[attr-defined]


def hear(node: Any) -> None:
    """Take what a worker of xdist has to say at its end."""
    said = getattr(node, "workeroutput", {})
    stash = node.config.stash
    if said.get("aorta_all_elsewhere"):
        stash[ALL_ELSEWHERE] = True
    if "aorta_refused" in said:
        stash[REFUSED] = said["aorta_refused"]


def set_exit_status(session: pytest.Session) -> None:
    """End well where there is nothing to run because other shards have all of it; and not where a worker refused."""
    config = session.config
    if REFUSED in config.stash:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
        sys.stderr.write(f"ERROR: {config.stash[REFUSED]}\n")
    elif not config.stash.get(ALL_ELSEWHERE, False):
        return
    elif is_worker(config):
        config.workeroutput["aorta_all_elsewhere"] = True  # type: ignore[attr-defined]
    elif session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def durations_of(run: Run) -> Durations:
    """The expected durations of trials.

    Raises:
        pytest.UsageError: the file cannot be read.
    """
    found = Durations()

    def read() -> None:
        nonlocal found
        if run.selection.durations is not None:
            found = read_durations(run.selection.durations)

    refuse(read)
    return found


def shard_of(items: Sequence[pytest.Item], number: int, count: int, durations: Durations) -> list[pytest.Item]:
    """The items of a shard, in their order; ``number`` from 1."""
    shards = shards_of([item.name for item in items], [_keys(item) for item in items], count, durations)
    return [item for item, shard in zip(items, shards, strict=True) if shard == number - 1]


def _keys(item: pytest.Item) -> list[Hashable]:
    """What an item shares with those that run where it runs: commands of a recipe on one directory, or on one trial."""
    if not item.nodeid.partition("::")[0].endswith(".toml"):
        return []
    from pytest_aorta.plugin.recipes.items import CommandItem, RecipeTrialItem
    from pytest_aorta.workflow.project import command_keys
    from pytest_aorta.workflow.requests import unit_of

    if isinstance(item, RecipeTrialItem):
        return [(item.path, item.action.name, unit_of(item.spec))]
    if not isinstance(item, CommandItem):
        return []
    return [(item.path, *key) for key in command_keys(item.unit.action, item.run.recipe, item.unit.units)]


def _fitting(items: Sequence[pytest.Item], run: Run) -> list[pytest.Item]:
    found: list[pytest.Item] = []

    def find() -> None:
        found.extend(item for item, _ in selected(_valued(items), _value, run.selection.where, _WHERE))

    refuse(find)
    return list({id(item): item for item in found}.values())


#: An item, and what gives the value of it, or of one of several directories.
_Valued = tuple[pytest.Item, "Callable[[], Json]"]


def _value(valued: _Valued) -> Json:
    return valued[1]()


def _valued(items: Sequence[pytest.Item]) -> list[_Valued]:
    """Items with values. A command on several directories is run on all of them when one is selected."""
    found: list[_Valued] = []
    for item in items:
        if isinstance(item, TrialItem):
            found.append((item, partial(trial_value, item.spec)))
        elif _is_command(item):
            value_of = item.run.project.value_of(item.unit.action)
            found += [(item, partial(value_of, unit)) for unit in item.unit.units]
        elif (call := getattr(item, "callspec", None)) is not None and "aorta_trial" in call.params:
            found.append((item, call.params["aorta_trial"].value))
    return found


def _is_command(item: pytest.Item) -> TypeGuard[CommandItem]:
    if not item.nodeid.partition("::")[0].endswith(".toml"):
        return False
    from pytest_aorta.plugin.recipes.items import CommandItem

    return isinstance(item, CommandItem)
