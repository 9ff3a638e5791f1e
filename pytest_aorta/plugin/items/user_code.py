"""Which code of the user pytest runs before an item: it may set variables, or skip the item."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_aorta.plugin.compat import fixture_definitions


def user_code(item: pytest.Function, installed: set[str]) -> Iterator[str]:
    """Fixtures of an item, and hooks before it, that are neither pytest's nor an ``installed`` plugin's; and where."""
    for name, definitions in fixture_definitions(item).items():
        # Where it is overridden, even by an installed plugin, its values are known only when the item is set up.
        known = installed if name != "aorta_extra_env" else {"pytest_aorta"}
        yield from (f"{name} ({_file(it.func)})" for it in definitions if _is_users(it.func, known))
    for hook in ("pytest_runtest_setup", "pytest_runtest_protocol"):
        for found in getattr(item.ihook, hook).get_hookimpls():
            if _is_users(found.function, installed):
                yield f"{hook} ({_file(found.function)})"


def installed_modules(config: pytest.Config) -> set[str]:
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
