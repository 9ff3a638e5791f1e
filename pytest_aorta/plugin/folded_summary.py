"""pytest's own summary of failures, in which trials that have failed alike are shown once or twice, and then counted.

Only what is printed changes: ``stats`` of the terminal reporter are narrowed while it prints, and no other plugin
reads them then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_aorta.common.texts import format_ranges
from pytest_aorta.plugin.compat import has_no_summary, with_lines
from pytest_aorta.triage.columns import counted

if TYPE_CHECKING:
    import pytest

    from pytest_aorta.triage.facts import Outcome, TrialFacts
    from pytest_aorta.triage.signatures import Signature

#: Categories of reports, and their letters in ``-r``.
_CATEGORIES = {"error": "E", "failed": "f"}

#: As many trials of a cell that have failed alike are all shown; of more of them, so many.
_ALL, _FIRST = 3, 2

#: Cells whose trials are shown that have failed alike.
_CELLS = 5

#: Ranges of trial numbers in a line.
_MOST_RANGES = 6

Report = TypeVar("Report")


class AlikeFailures:
    """How the trials of items have failed, by node id."""

    def __init__(self) -> None:
        #: The way to fail, the cell, and the number of the trial.
        self._failed: dict[str, tuple[tuple[Outcome, Signature], str, int]] = {}

    def add(self, nodeid: str, facts: TrialFacts, cell: tuple[str, str]) -> None:
        """The trial of an item is over; ``cell``: its workload, or action of a recipe, and its cell."""
        if facts.signature is not None:
            self._failed[nodeid] = (facts.outcome, facts.signature), " ".join(cell), facts.index

    def fold(
        self, reports: Iterable[Report], nodeid_of: Callable[[Report], str]
    ) -> tuple[list[Report], dict[str, list[str]]]:
        """The reports to show, in their order; and by node id the lines below one of them, which count those that are
        not shown, although their trials have failed alike."""
        reports = list(reports)
        ways: dict[tuple[Outcome, Signature], dict[str, list[str]]] = {}
        for nodeid in map(nodeid_of, reports):
            if nodeid in self._failed:
                way, cell, _ = self._failed[nodeid]
                ways.setdefault(way, {}).setdefault(cell, []).append(nodeid)
        several = len({cell.partition(" ")[0] for cells in ways.values() for cell in cells}) > 1
        hidden: set[str] = set()
        lines: dict[str, list[str]] = {}

        def fold(below: str, cell: str, names: Sequence[str], others: int = 0) -> None:
            hidden.update(names)
            where = cell if several else cell.partition(" ")[2]
            numbers = sorted(self._failed[name][2] for name in names)
            which = f": trial{'s' * (len(numbers) > 1)} {ranges(numbers)}"
            which = f" and {counted(others, 'other cell')}" if others else which
            like = below.rpartition("::")[2]
            text = f"... and {len(names)} more like {like} in {where}{which} (each has its file)"
            lines.setdefault(below, []).append(text)

        for cells in ways.values():
            for cell, names in list(cells.items())[:_CELLS]:
                number = _FIRST if len(names) > _ALL else len(names)
                last = names[number - 1]
                if names[number:]:
                    fold(last, cell, names[number:])
            if further := list(cells.items())[_CELLS:]:
                fold(last, further[0][0], [name for _, names in further for name in names], len(further) - 1)
        return [report for report in reports if nodeid_of(report) not in hidden], lines


class FoldedSummary:
    """The reports of a terminal reporter, all or only those that are shown."""

    def __init__(self, terminal: pytest.TerminalReporter, alike: AlikeFailures) -> None:
        self._terminal = terminal
        self._all = {category: terminal.stats[category] for category in _CATEGORIES if category in terminal.stats}
        self._shown: dict[str, list[Any]] = {}
        self._short_lines: list[str] = []
        for category, reports in self._all.items():
            shown, lines = alike.fold(reports, _nodeid)
            self._shown[category] = [_with_lines(report, lines.get(_nodeid(report), [])) for report in shown]
            if terminal.hasopt(_CATEGORIES[category]):
                self._short_lines += [line for found in lines.values() for line in found]

    def narrow(self) -> None:
        """While pytest prints failures, and its short summary."""
        self._terminal.stats.update(self._shown)

    def restore(self) -> None:
        """While other plugins print; counts are of all reports."""
        self._terminal.stats.update(self._all)

    def print(self) -> None:
        """Below the short summary, what it leaves out."""
        if self._short_lines and not has_no_summary(self._terminal):
            for line in [*self._short_lines, "-v shows them all; each has its trial file"]:
                self._terminal.write_line(line)


def _nodeid(report: Any) -> str:
    return "" if hasattr(report, "_pdbshown") else str(report.nodeid)


def _with_lines(report: Any, lines: list[str]) -> Any:
    if not lines:
        return report
    report = copy.copy(report)
    report.longrepr = with_lines(report.longrepr, lines)
    return report


def ranges(numbers: Sequence[int]) -> str:
    """``3-15, 17, 20-22`` for sorted numbers; of very many, the first ones."""
    texts = format_ranges(set(numbers)).split(",")
    return ", ".join([*texts[:_MOST_RANGES], "..."] if len(texts) > _MOST_RANGES else texts)
