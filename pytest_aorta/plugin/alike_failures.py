"""Of many trials that have failed alike, which are shown in full, and what is said of the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_aorta.plugin.failure_text import printable
from pytest_aorta.plugin.side_by_side import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_aorta.triage.facts import TrialFacts
    from pytest_aorta.triage.signatures import Signature

#: As many trials of a cell that have failed alike are all shown; of more of them, so many.
_ALL, _FIRST = 3, 2

#: Trials that are shown in full at most.
_MOST_SHOWN = 20

#: Lines that say of a cell's trials only how they have failed, and ranges of trial numbers in a line, at most.
_MOST_LINES, _MOST_RANGES = 50, 6

Report = TypeVar("Report")


@dataclass(frozen=True)
class _Failed:
    cell: str
    index: int
    signature: Signature | None
    outcome: str


@dataclass
class Fold:
    """Trials that are not shown.

    Attributes:
        like: node id of one that has failed alike and is shown; empty where there is none.
        cell: of all of them.
        what: has failed, in one line.
        trials: their indices.
    """

    like: str
    cell: str
    what: str
    trials: list[int]

    @property
    def line(self) -> str:
        """Below the last trial that is shown."""
        if not self.like:
            return f"... and {len(self.trials)} in {self.cell}: {self.what}: {self._trials} (each has its file)"
        return f"... and {len(self.trials)} more like this in {self.cell}: {self._trials} (each has its file)"

    @property
    def short_line(self) -> str:
        """In the short summary."""
        like = f"like {self.like.rpartition('::')[2]}" if self.like else f"in {self.cell}: {self.what}"
        return f"... and {len(self.trials)} {'more ' if self.like else ''}{like}: {self._trials}"

    @property
    def _trials(self) -> str:
        return f"trial{'s' * (len(self.trials) > 1)} {ranges(self.trials)}"


class AlikeFailures:
    """How the trials of items have failed, by node id."""

    def __init__(self) -> None:
        self._failed: dict[str, _Failed] = {}

    def add(self, nodeid: str, facts: TrialFacts) -> None:
        """The trial of an item is over."""
        if facts.signature is not None:
            cell = f"{facts.key.workload} {facts.key.cell}"
            self._failed[nodeid] = _Failed(cell, facts.index, facts.signature, facts.outcome)

    def fold(
        self, reports: Iterable[Report], nodeid_of: Callable[[Report], str]
    ) -> tuple[list[Report], dict[str, list[Fold]]]:
        """The reports to show, in their order; and by node id what is said below one of them of those that are not."""
        reports = list(reports)
        groups: dict[_Failed, list[Report]] = {}
        for report in reports:
            found = self._failed.get(nodeid_of(report))
            if found is not None:
                groups.setdefault(_Failed(found.cell, 0, found.signature, found.outcome), []).append(report)
        hidden: set[str] = set()
        folds: dict[str, list[Fold]] = {}
        unseen: list[Fold] = []
        room, last = _MOST_SHOWN, ""
        several = len({found.cell.partition(" ")[0] for found in groups}) > 1
        for alike, members in groups.items():
            number = min(room, len(members) if len(members) <= _ALL else _FIRST)
            room -= number
            names = [nodeid_of(report) for report in members]
            if number < len(names):
                cell = alike.cell if several else alike.cell.partition(" ")[2]
                what = _shortened(alike.signature.text if alike.signature is not None else alike.outcome)
                trials = sorted(self._failed[name].index for name in names[number:])
                fold = Fold(names[0] if number else "", cell, what, trials)
                hidden.update(names[number:])
                if number:
                    folds.setdefault(names[number - 1], []).append(fold)
                else:
                    unseen.append(fold)
            last = names[number - 1] if number else last
        if last and unseen:
            folds.setdefault(last, []).extend(_bounded(unseen))
        return [report for report in reports if nodeid_of(report) not in hidden], folds


def _bounded(folds: list[Fold]) -> list[Fold]:
    """Not more than so many lines; the last one stands for all others."""
    rest = folds[_MOST_LINES - 1 :]
    if len(rest) < 2:
        return folds
    cells = len({fold.cell for fold in rest})
    trials = sorted(itertools.chain.from_iterable(fold.trials for fold in rest))
    return [*folds[: _MOST_LINES - 1], Fold("", counted(cells, "cell"), f"{len(rest)} kinds of failures", trials)]


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
