"""pytest's own summary of failures, in which trials that have failed alike are shown once or twice, and then counted.

Only what is printed changes: ``stats`` of the terminal reporter are narrowed while it prints, and no other plugin
reads them then.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_aorta.common.texts import printable
from pytest_aorta.plugin.compat import has_no_summary, terminal_width, with_lines
from pytest_aorta.triage.columns import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pytest_aorta.triage.facts import Outcome, TrialFacts
    from pytest_aorta.triage.signatures import Signature


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
        """Before pytest prints failures, and its short summary."""
        self._terminal.stats.update(self._shown)

    def pause(self) -> None:
        """While other plugins print."""
        self._terminal.stats.update(self._all)

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
    return "" if hasattr(report, "_pdbshown") else str(report.nodeid)


def _with_folds(report: Any, folds: list[Fold]) -> Any:
    if not folds:
        return report
    report = copy.copy(report)
    report.longrepr = with_lines(report.longrepr, [fold.line for fold in folds])
    return report


#: As many trials of a cell that have failed alike are all shown; of more of them, so many.
_ALL, _FIRST = 3, 2

#: Trials that are shown in full at most.
_MOST_SHOWN = 20

#: Lines that say of trials only how they have failed, and ranges of trial numbers in a line, at most.
_MOST_LINES, _MOST_RANGES = 50, 6

Report = TypeVar("Report")

#: How a trial has failed.
_Way = tuple["Outcome", "Signature"]


@dataclass(frozen=True)
class _Failed:
    cell: str
    index: int
    way: _Way


@dataclass
class Fold:
    """Trials that are not shown.

    Attributes:
        like: node id of one that is shown, is in the same cell and has failed alike; empty where there is none.
        what: has failed, in one line.
        trials: their numbers, by cell.
    """

    like: str
    what: str
    trials: dict[str, list[int]]

    @property
    def line(self) -> str:
        """Below the last trial that is shown."""
        more = f"more like this in {self._cells}" if self.like else f"in {self._cells}: {self.what}"
        return f"... and {self.number} {more}{self._numbers} (each has its file)"

    @property
    def short_line(self) -> str:
        more = f"more like {self.like.rpartition('::')[2]}" if self.like else f"in {self._cells}: {self.what}"
        return f"... and {self.number} {more}{self._numbers}"

    @property
    def number(self) -> int:
        """How many they are."""
        return sum(map(len, self.trials.values()))

    @property
    def _cells(self) -> str:
        first, *others = self.trials
        return f"{first} and {counted(len(others), 'other cell')}" if others else first

    @property
    def _numbers(self) -> str:
        if len(self.trials) > 1:
            return ""
        (found,) = self.trials.values()
        return f": trial{'s' * (len(found) > 1)} {ranges(found)}"


class AlikeFailures:
    """How the trials of items have failed, by node id."""

    def __init__(self) -> None:
        self._failed: dict[str, _Failed] = {}

    def add(self, nodeid: str, facts: TrialFacts, cell: tuple[str, str]) -> None:
        """The trial of an item is over; ``cell``: its workload, or action of a recipe, and its cell."""
        if facts.signature is not None:
            self._failed[nodeid] = _Failed(" ".join(cell), facts.index, (facts.outcome, facts.signature))

    def fold(
        self, reports: Iterable[Report], nodeid_of: Callable[[Report], str]
    ) -> tuple[list[Report], dict[str, list[Fold]]]:
        """The reports to show, in their order; and by node id what is said below one of them of those that are not."""
        reports = list(reports)
        groups: dict[tuple[_Way, str], list[str]] = {}
        for nodeid in map(nodeid_of, reports):
            found = self._failed.get(nodeid)
            if found is not None:
                groups.setdefault((found.way, found.cell), []).append(nodeid)
        numbers = _numbers_to_show(groups)
        several = len({cell.partition(" ")[0] for _, cell in groups}) > 1
        hidden: set[str] = set()
        folds: dict[str, list[Fold]] = {}
        unseen: dict[_Way, Fold] = {}
        for (way, cell), names in groups.items():
            number = numbers[way, cell]
            if number == len(names):
                continue
            hidden.update(names[number:])
            name = cell if several else cell.partition(" ")[2]
            trials = sorted(self._failed[nodeid].index for nodeid in names[number:])
            if number:
                folds.setdefault(names[number - 1], []).append(Fold(names[0], "", {name: trials}))
            else:
                unseen.setdefault(way, Fold("", _shortened(way[1].text), {})).trials[name] = trials
        shown = [report for report in reports if nodeid_of(report) not in hidden]
        if unseen:
            last = [nodeid for nodeid in map(nodeid_of, shown) if nodeid in self._failed][-1]
            folds.setdefault(last, []).extend(_bounded(list(unseen.values())))
        return shown, folds


def _numbers_to_show(groups: Mapping[tuple[_Way, str], Sequence[str]]) -> dict[tuple[_Way, str], int]:
    seen: Counter[_Way] = Counter()
    before = {}
    for way, cell in groups:
        before[way, cell] = seen[way]
        seen[way] += 1
    room = _MOST_SHOWN
    numbers = {}
    for group in sorted(groups, key=before.__getitem__):
        total = len(groups[group])
        numbers[group] = min(room, total if total <= _ALL else _FIRST)
        room -= numbers[group]
    return numbers


def _bounded(folds: list[Fold]) -> list[Fold]:
    rest = folds[_MOST_LINES - 1 :]
    if len(rest) < 2:
        return folds
    trials: dict[str, list[int]] = {}
    for fold in rest:
        for cell, numbers in fold.trials.items():
            trials[cell] = sorted([*trials.get(cell, ()), *numbers])
    return [*folds[: _MOST_LINES - 1], Fold("", f"failed in {len(rest)} other ways", trials)]


def _shortened(text: str, longest: int = 60) -> str:
    text = " ".join(printable(text).split())
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def ranges(numbers: Sequence[int]) -> str:
    """``3-15, 17, 20-22`` for sorted numbers; of very many, the first ones."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        elif not found or number != found[-1][1]:
            found.append([number, number])
    texts = [f"{first}-{last}" if last > first else f"{first}" for first, last in found]
    return ", ".join([*texts[:_MOST_RANGES], "..."] if len(texts) > _MOST_RANGES else texts)


#: Categories of reports, and their letters in ``-r``.


#: Columns in which a reason can be recognised.
_ENOUGH = 24

#: Columns of the longest word before a node id, of a space, and of the dash after it.
_BESIDES = len("TIMEOUT") + len("  - ")


def cut_reasons(terminal: pytest.TerminalReporter, width: int, environ: Mapping[str, str] = os.environ) -> list[str]:
    """One line for each such trial of those that the short summary shows."""
    # pytest cuts nothing off then.
    if terminal.no_summary or terminal.verbosity >= 2 or environ.get("CI") or environ.get("BUILD_NUMBER"):
        return []
    lines = []
    for category, letter in _CATEGORIES.items():
        for report in terminal.stats.get(category, ()) if terminal.hasopt(letter) else ():
            crash = getattr(report.longrepr, "reprcrash", None)
            if getattr(report, "aorta", None) is None or crash is None:
                continue
            reason = crash.message.partition("\n")[0]
            room = width - _BESIDES - terminal_width(_shown_id(terminal.config, str(report.nodeid)))
            if room < min(_ENOUGH, terminal_width(reason)):
                lines.append(f"{report.nodeid.rpartition('::')[2]}: {reason}")
    return lines


def _shown_id(config: pytest.Config, nodeid: str) -> str:
    path, separator, name = nodeid.partition("::")
    return os.path.relpath(config.rootpath / path, config.invocation_params.dir) + separator + name
