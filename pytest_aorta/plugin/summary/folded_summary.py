"""pytest's own summary of failures, in which trials that have failed alike are shown once or twice, and then counted.

Only what is printed changes: ``stats`` of the terminal reporter are narrowed while it prints, and no other plugin
reads them then.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pytest_aorta.plugin.compat import has_no_summary, with_lines

if TYPE_CHECKING:
    import pytest

    from pytest_aorta.plugin.summary.alike_failures import AlikeFailures, Fold

#: Categories of reports, and their letters in ``-r``.
_CATEGORIES = {"error": "E", "failed": "f"}


class FoldedSummary:
    """The reports of a terminal reporter, all or only those that are shown."""

    def __init__(self, terminal: pytest.TerminalReporter, alike: AlikeFailures) -> None:
        self._terminal = terminal
        self._all: dict[str, list[Any]] = {}
        self._shown: dict[str, list[Any]] = {}
        self._folds: dict[str, list[Fold]] = {}
        for category in _CATEGORIES:
            reports = terminal.stats.get(category, [])
            shown, folds = alike.fold(reports, _nodeid)
            if folds:
                self._all[category] = reports
                self._shown[category] = [_with_folds(report, folds.get(_nodeid(report), [])) for report in shown]
                self._folds[category] = [fold for found in folds.values() for fold in found]

    def begin(self) -> None:
        """Before pytest prints failures."""
        self._terminal.stats.update(self._shown)

    def pause(self) -> None:
        """While other plugins print."""
        self._terminal.stats.update(self._all)

    def resume(self) -> None:
        """Before pytest prints its short summary."""
        self._terminal.stats.update(self._shown)

    def end(self) -> None:
        """After that; its counts are of all reports."""
        self._terminal.stats.update(self._all)
        if has_no_summary(self._terminal):
            return
        lines = [
            fold.short_line
            for category, letter in _CATEGORIES.items()
            if self._terminal.hasopt(letter)
            for fold in self._folds.get(category, ())
        ]
        for line in lines:
            self._terminal.write_line(line)
        if lines:
            self._terminal.write_line("-v shows them all; each has its trial file")


def _nodeid(report: Any) -> str:
    """Of a report that may be folded; empty for one that was shown by a debugger."""
    return "" if hasattr(report, "_pdbshown") else str(report.nodeid)


def _with_folds(report: Any, folds: list[Fold]) -> Any:
    """A copy of a report that says at its end what was left out."""
    if not folds:
        return report
    report = copy.copy(report)
    report.longrepr = with_lines(report.longrepr, [fold.line for fold in folds])
    return report
