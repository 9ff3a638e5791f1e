"""Rounds: what cells that ran by turns share with each other, and what is left within a cell.

A run has one trial of each cell in each round. What the machine does to a round it does to all of its trials, so that
trials of one round are compared with each other, and neither drift nor a bad hour makes a difference between cells.
What makes failures of *one cell* come in runs is no such thing, and leaves every difference in doubt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.rates import Counts

if TYPE_CHECKING:
    import numpy as np

    _Numbers = np.ndarray[Any, np.dtype[Any]]

#: Level of "the cells of a round end alike": for the choice of the test, and beside ``_LEFT``, the one-sided normal
#: quantile of "that is not all". A slow drift looks much the same turned round a little, so that the latter is wider.
_SHARED, _PROBABLY, _LEFT = 0.05, 0.2, 1.28

#: Ways in which series are turned round, at most.
_TURNS = 999

#: Fewer rounds, and cells with both ends, say nothing of what they share.
_FEWEST = 8

#: Trials of one side that are compared with one of the other, at most: those that are the nearest.
_NEAR = 2

#: Cells ran by turns if they alternated at least so often, as a share of what is possible.
_BY_TURNS = 0.5

#: One ran sooner than the other if the shares of both in the first half of the run differ by more.
_SOONER = 0.2


def in_order(trials: Sequence[TrialFacts]) -> list[TrialFacts]:
    """As they began; of those that began at one time, or at no known one, by their indices."""
    return sorted(trials, key=lambda facts: (facts.started_at, facts.index, facts.file))


#: Trials as their place, and when they began; empty for not known.
Spots = Sequence[tuple[Hashable, str]]

#: Positions of neighbouring trials of one place, of the cell and of its baseline.
Window = tuple[list[int], list[int]]


def windows(cell: Spots, base: Spots) -> list[Window]:
    """The trials of both, in their order, place by place, in windows; those at places that only one has are left out.

    Cells that ran by turns have one trial of each in a window. Where the times are not known, the k-th trials of both
    are neighbours.
    """
    is_timed = all(began for _, began in (*cell, *base))
    at: dict[Hashable, list[tuple[Any, int, int]]] = {}
    for side, spots in enumerate((cell, base)):
        numbers = Counter[Hashable]()
        for position, (place, began) in enumerate(spots):
            at.setdefault(place, []).append((began if is_timed else numbers[place], side, position))
            numbers[place] += 1
    found = []
    for here in at.values():
        if len({side for _, side, _ in here}) < 2:
            continue
        own: list[Window] = []
        now: Window = ([], [])
        for _, side, position in sorted(here):
            now[side].append(position)
            if all(now):
                own.append((now[0][-_NEAR:], now[1][-_NEAR:]))
                now = ([], [])
        for side in (0, 1):
            own[-1][side].extend(now[side][: _NEAR - 1])
        found += own
    return found


def by_turns(found: Sequence[Window], cell: Spots, base: Spots) -> bool:
    """Whether both sides alternated at the places that they share, so that changes over time have hit both alike."""
    shared = {place for place, _ in cell} & {place for place, _ in base}
    least = sum(min(sum(each == place for each, _ in side) for side in (cell, base)) for place in shared)
    return bool(found) and len(found) >= _BY_TURNS * least


def round_counts(cell: Sequence[TrialFacts], base: Sequence[TrialFacts]) -> tuple[Counts, ...]:
    """Failures and trials of both in each window; empty where they did not run by turns."""
    sides = in_order(cell), in_order(base)
    spots = [[(facts.place.key, facts.started_at) for facts in side] for side in sides]
    found = windows(*spots)
    if not by_turns(found, *spots):
        return ()
    failed = [[facts.is_failure for facts in side] for side in sides]
    return tuple(
        (sum(failed[0][each] for each in ours), len(ours), sum(failed[1][each] for each in theirs), len(theirs))
        for ours, theirs in found
    )


def is_sooner(cell: Sequence[TrialFacts], base: Sequence[TrialFacts]) -> bool:
    """Whether one of both ran clearly sooner than the other, so that a drift would make a difference."""
    if not all(facts.started_at for facts in (*cell, *base)):
        return False
    both = in_order([*cell, *base])
    first = {id(facts) for facts in both[: len(both) // 2]}
    shares = [sum(id(facts) in first for facts in side) / len(side) for side in (cell, base)]
    return abs(shares[0] - shares[1]) > _SOONER


@dataclass(frozen=True)
class Rounds:
    """What the rounds of a table say.

    Attributes:
        p: of "cells share nothing from round to round", whatever makes each of them run.
        left: the serial correlation within cells that they do not share; ``error``: its standard error.
    """

    p: float = 1.0
    left: float = 0.0
    error: float = 1.0

    @property
    def are_shared(self) -> bool:
        """Whether the trials of a round end alike, in all cells."""
        return self.p <= _SHARED

    @property
    def explain_runs(self) -> bool:
        """Whether runs of failures are what rounds share, as far as one can see."""
        return self.p <= _PROBABLY and self.left < _LEFT * self.error


def analyse_rounds(cells: Sequence[Sequence[TrialFacts]]) -> Rounds:
    """``cells``: the counted trials of each.

    Residuals are those of a trial beside its cell at its place. Each cell's series is turned round by a random number
    of rounds, which leaves the runs within it as they are: in so many of these turns the products of neighbouring
    residuals of different cells (of one round, or one apart) are as large as in truth.
    """
    import numpy as np

    rounds = sorted({facts.index for trials in cells for facts in trials})
    series = [each for each in (_residuals(trials, rounds) for trials in cells) if each is not None]
    if len(series) < 2 or len(rounds) < _FEWEST:
        return Rounds()
    values = np.stack(series)
    cells_left, count = values.shape
    generator = np.random.default_rng(count)
    if count ** (cells_left - 1) <= _TURNS:
        turns = np.indices([count] * (cells_left - 1)).reshape(cells_left - 1, -1).T
    else:
        turns = generator.integers(count, size=(_TURNS, cells_left - 1))
        turns[0] = 0
    turned = np.tile(values[0], (len(turns), 1))
    for number, own_turns in enumerate(turns.T, 1):
        turned += values[number][(np.arange(count) + own_turns[:, None]) % count]
    products = (turned * (turned + 2 * np.roll(turned, 1, axis=1))).sum(axis=1)
    p = float((products >= products[0] - 1e-9 * (1 + abs(products[0]))).mean())
    squares = (values**2).sum(axis=1)
    lagged = values[:, :-1] @ values[:, 1:].T
    own, spread = float(np.trace(lagged)), float(squares.sum())
    roots = np.sqrt(squares)
    cross = (float(lagged.sum()) - own) / (float(roots.sum() ** 2) - spread)
    return Rounds(p, own / spread - cross, sqrt(1 / (count * (cells_left - 1))))


def _residuals(trials: Sequence[TrialFacts], rounds: Sequence[int]) -> _Numbers | None:
    """Of each round, 0 where it has none; ``None`` for a cell whose trials all end alike at each of their places."""
    import numpy as np

    at: dict[Hashable, list[bool]] = {}
    for facts in trials:
        at.setdefault(facts.place.key, []).append(facts.is_failure)
    means = {place: sum(failed) / len(failed) for place, failed in at.items()}
    found = np.zeros(len(rounds))
    number = {index: position for position, index in enumerate(rounds)}
    for facts in trials:
        found[number[facts.index]] += facts.is_failure - means[facts.place.key]
    return found if found.any() else None
