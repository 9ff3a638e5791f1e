"""The private parts of pytest and pytest-timeout that the plugin needs, each in one place."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import pytest
from _pytest._code.code import (
    ExceptionRepr,
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
    TerminalRepr,
)
from _pytest._io import TerminalWriter
from _pytest._io.wcwidth import wcswidth
from _pytest.fixtures import FuncFixtureInfo
from _pytest.outcomes import Skipped
from pluggy import HookRelay

#: Columns of a printable text in a terminal: wide characters take two, combining ones none.
terminal_width = wcswidth


def longrepr_of(text: str, path: str | os.PathLike[str], line: int | None, reason: str) -> ReprExceptionInfo:
    """A text for pytest's reports, which show it unchanged, and the ``reason`` in the short summary. ``line``: from 0.

    pytest has no public way to make such an object, which xdist can send. With ``CI`` set, the short summary would
    repeat a plain string in full.
    """
    shown = ReprTraceback([ReprEntryNative([text + "\n"] if text else [])], None, style="native")
    return ReprExceptionInfo(shown, ReprFileLocation(os.fspath(path), (line or 0) + 1, reason))


def add_section(longrepr: object, title: str, text: str) -> None:
    if isinstance(longrepr, ExceptionRepr):
        longrepr.addsection(title, text)


def add_reason(longrepr: object, reason: str) -> None:
    crash = getattr(longrepr, "reprcrash", None)
    if isinstance(crash, ReprFileLocation):
        crash.message = f"{reason}; {crash.message}"


class WithLines(TerminalRepr):
    """The text of a failure in a report, with lines below it."""

    def __init__(self, shown: Any, lines: Sequence[str]) -> None:
        self._shown = shown
        self._lines = lines
        self.reprcrash = getattr(shown, "reprcrash", None)

    def toterminal(self, tw: TerminalWriter) -> None:
        if hasattr(self._shown, "toterminal"):
            self._shown.toterminal(tw)
        else:
            tw.line(str(self._shown))
        for line in self._lines:
            tw.line(line, yellow=True)


class SkippedItem(Skipped):
    """Skips an item for a reason of ours; to a type checker, ``pytest.skip.Exception`` is no class."""


def fixture_definitions(item: pytest.Function) -> Mapping[str, Sequence[pytest.FixtureDef[Any]]]:
    """The fixtures of an item by name, each with the definitions that it overrides."""
    return item._fixtureinfo.name2fixturedefs


def general_timeout(config: pytest.Config) -> float | None:
    return getattr(config, "_env_timeout", None) or None


def tear_down_before(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Tear down fixtures that ``nextitem`` does not need, in place of ``item``, which does not run."""
    item.session._setupstate.teardown_exact(nextitem)


def option_actions(config: pytest.Config) -> dict[str, argparse.Action]:
    return {flag: action for action in config._parser.optparser._actions for flag in action.option_strings}


def terminal_file(config: pytest.Config) -> TextIO | None:
    """The file of pytest's own terminal reporter; ``None`` if another reporter has taken its place."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    # Others, such as pytest-sugar's, move the cursor themselves.
    return config.get_terminal_writer()._file if type(reporter) is pytest.TerminalReporter else None


def native_ini_value(config: pytest.Config, name: str) -> Any:
    """A value of pytest 9's native TOML as an ini file would have it: a text, or a list of texts.

    pytest refuses a number or a switch for a key that is declared as text. A table stays a table.
    """
    given = config._inicfg[name]
    value = getattr(given, "value", given)
    return [_as_text(each) for each in value] if isinstance(value, list) else _as_text(value)


def _as_text(value: object) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


def end_line(terminal: pytest.TerminalReporter) -> None:
    """Begin a new line, also after the letters of xdist's tests, which ``ensure_newline`` does not see."""
    terminal.ensure_newline()
    if terminal._tw.width_of_current_line:
        terminal._tw.line()


def has_no_summary(terminal: pytest.TerminalReporter) -> bool:
    """``--no-summary``; a reporter of another plugin may not know it."""
    return bool(getattr(terminal, "no_summary", False))


def set_terminal_file(config: pytest.Config, file: TextIO) -> None:
    config.get_terminal_writer()._file = file


class GeneratedFunction(pytest.Function):
    """A test function that is made from data, and not collected from a module."""

    @classmethod
    def of(
        cls, parent: pytest.Collector, name: str, function: Callable[..., None], sibling: GeneratedFunction | None
    ) -> Any:
        """Make the item; a ``sibling`` of the same function saves computing its fixtures."""
        shared: dict[str, Any] = {} if sibling is None else {"fixtureinfo": sibling._fixtureinfo}
        return cls._named(parent, name, callobj=function, **shared)

    @classmethod
    def with_fixture(cls, parent: pytest.Collector, name: str, function: Callable[..., None], fixture: str) -> Any:
        """Make the item of a function that takes a ``fixture``, without autouse fixtures."""
        manager = parent.session._fixturemanager
        closure, definitions = manager.getfixtureclosure(parent, (fixture,), ignore_args=frozenset())
        info = FuncFixtureInfo((fixture,), (fixture,), closure, definitions)
        return cls._named(parent, name, callobj=function, fixtureinfo=info)

    @classmethod
    def _named(cls, parent: pytest.Collector, name: str, **given: Any) -> Any:
        item = cls.from_parent(parent, name=name, **given)
        if hasattr(item, "_id"):
            # pytest 9.2 compares structured ids, and does not take a name with brackets apart by itself: without this,
            # --lf and --ff would not know the item again.
            base, _, parameters = name.partition("[")
            item._id = parent.id.child(base).with_params(parameters.removesuffix("]") if parameters else None)
        return item

    @property
    def ihook(self) -> HookRelay:
        """The hooks of its parent: conftest files beside the item's path need not apply to it."""
        assert self.parent is not None
        return self.parent.ihook

    def visible_traceback(self, traceback: Any) -> Any:
        return traceback

    def _traceback_filter(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
        return self.visible_traceback(super()._traceback_filter(excinfo))
