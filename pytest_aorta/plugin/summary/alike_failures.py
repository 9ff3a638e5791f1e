"""Of many trials that have failed alike, which are shown in full, and what is said of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_aorta.plugin.failure_text import printable
from pytest_aorta.plugin.summary.side_by_side import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_aorta.triage.facts import Outcome, TrialFacts
    from pytest_aorta.triage.signatures import Signature

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
        """In the short summary."""
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
    """How many of each group are shown: each way to fail once, before the same way in further cells."""
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
    """Not more than so many lines; the last one stands for all others."""
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
