"""Trials that are launched before pytest has come to their items, so that every slot has something to do."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_aorta.launch.replayed import ReplayedTrial
    from pytest_aorta.launch.submitted import SlotTrial
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPlace


class Ahead:
    """The trials of items that pytest has not come to yet, by node id."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: dict[str, tuple[SlotTrial | ReplayedTrial, TrialSpec, TrialPlace]] = {}
        self._launched = False
        #: Trials whose items did not want them, and that are being ended.
        self._dropped: list[tuple[SlotTrial | ReplayedTrial, TrialPlace]] = []
        #: Fixtures and hooks that keep trials from being launched ahead, with an item that has each.
        self.held_by: dict[str, str] = {}

    def launch_all(self, session: pytest.Session) -> None:
        """Launch, in the order of their items, all trials that do not depend on what their items do first."""
        if self._launched or self._run.selection.resources.total_slots < 2 or hasattr(session.config, "workerinput"):
            return
        self._launched = True
        from pytest_aorta.plugin.collection import TrialItem
        from pytest_aorta.plugin.run import deadline_of

        installed = _installed(session.config)
        chosen = [
            (item, item.plan.place(item.spec))
            for item in session.items
            if isinstance(item, TrialItem)
            and item.spec.execution.isolation != "none"
            and not self._held(item, installed)
        ]
        # All of them first: to know whether a result is still good takes a slot, which the trials would have.
        found = [self._run.find(item.spec, place) for item, place in chosen]
        for (item, place), trial in zip(chosen, found, strict=True):
            started: Any = trial or self._run.start(item.spec, place, deadline_of(item, item.spec), urgent=False)
            self._waiting[item.nodeid] = (started, item.spec, place)

    def _held(self, item: pytest.Function, installed: set[str]) -> bool:
        """Whether code of the user runs before the item, or marks may keep it from running at all."""
        found = next(users_code(item, installed), None)
        if found is not None:
            self.held_by.setdefault(found, item.nodeid)
        return found is not None or any(item.get_closest_marker(name) for name in ("skip", "skipif", "xfail"))

    def take(self, item: pytest.Item) -> SlotTrial | ReplayedTrial | None:
        """The trial of an item that pytest has come to."""
        found = self._waiting.pop(item.nodeid, None)
        return None if found is None else found[0]

    def drop(self, nodeid: str) -> None:
        """Pytest is through with an item, and has not asked for its trial: it was skipped."""
        found = self._waiting.pop(nodeid, None)
        if found is not None:
            found[0].interrupt("its item was not run")
            self._dropped.append((found[0], found[2]))

    def interrupt(self, why: str) -> None:
        """Cancel what has not started, end what runs; those first that would start instead of others."""
        for trial, _, _ in reversed(self._waiting.values()):
            trial.interrupt(why)

    def end(self, why: str) -> list[dict[str, Any]]:
        """Pytest will not come to the rest: cancel what has not started, end what runs; records of what had started."""
        self.interrupt(why)
        waiting, self._waiting = self._waiting, {}
        records = []
        for trial, _, place in waiting.values():
            record = trial.finish()
            if trial.started:
                records.append({"path": str(place.file), "result": record.to_dict()})
        for trial, place in self._dropped:
            trial.finish()
            if trial.started and not place.file_in(self._run.results).exists():
                shutil.rmtree(place.folder_in(self._run.results), ignore_errors=True)
        return records


def users_code(item: pytest.Function, installed: set[str]) -> Iterator[str]:
    """Fixtures of an item, and hooks before it, that are neither pytest's nor an ``installed`` plugin's; and where.

    They may set variables, or skip the item.
    """
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        # Where it is overridden, even by an installed plugin, its values are known only when the item is set up.
        theirs = installed if name != "aorta_extra_env" else {"pytest_aorta"}
        yield from (f"{name} ({_file(it.func)})" for it in definitions if _is_users(it.func, theirs))
    for hook in ("pytest_runtest_setup", "pytest_runtest_protocol"):
        for found in getattr(item.ihook, hook).get_hookimpls():
            if _is_users(found.function, installed):
                yield f"{hook} ({_file(found.function)})"


def _installed(config: pytest.Config) -> set[str]:
    """Top-level modules of pytest and of the plugins that were installed as distributions."""
    plugins = {_module(plugin) for plugin, _ in config.pluginmanager.list_plugin_distinfo()}
    return {"_pytest", "pytest", "pluggy", *(module.partition(".")[0] for module in plugins)}


def _is_users(function: object, installed: set[str]) -> bool:
    return _file(function) == "conftest.py" or _module(function).partition(".")[0] not in installed


def _module(thing: object) -> str:
    """Of a function or a plugin, which is a module or an object of any class."""
    if isinstance(thing, ModuleType):
        return thing.__name__
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def _file(function: object) -> str:
    """The name of the file that a function is written in."""
    code = getattr(inspect.unwrap(function), "__code__", None)  # type: ignore[arg-type]  # any object will do
    return "?" if code is None else Path(code.co_filename).name
