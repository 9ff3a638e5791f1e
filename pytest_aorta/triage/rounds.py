"""Rounds: effects that cells that ran by turns share, and effects within one cell.

Each round of a run has one trial of each cell. The state of the machine hits all trials of a round alike, so trials of
one round are compared with each other, and neither drift nor a bad hour makes a difference between cells. Runs of
failures within *one cell* are not shared, and leave every difference in doubt.
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

#: Levels of "the cells of a round end alike": for the choice of the test; and, together with ``_LEFT``, for the claim
#: that rounds explain runs. The second is wider, because a slow drift hardly changes when it is rotated a little.
#: ``_LEFT`` is a one-sided normal quantile.
_SHARED, _PROBABLY, _LEFT = 0.05, 0.2, 1.28

#: Number of rotations of the series, at most.
_TURNS = 999

#: Fewer rounds do not show what cells share.
_FEWEST = 8

#: At most so many trials of one side, the nearest, are compared with one of the other.
_NEAR = 2

#: Cells ran by turns if they alternated in at least this share of the possible cases.
_BY_TURNS = 0.5

#: One cell ran sooner if the shares of both in the first half of the run differ by more than this.
_SOONER = 0.2


def in_order(trials: Sequence[TrialFacts]) -> list[TrialFacts]:
    """Sort trials by their begin; by their index if that is equal or unknown."""
    return sorted(trials, key=lambda facts: (facts.started_at, facts.index, facts.file))


#: Place and begin of trials; an empty begin is unknown.
Spots = Sequence[tuple[Hashable, str]]

#: Positions of neighbouring trials at one place: of the cell, and of its baseline.
Window = tuple[list[int], list[int]]


def windows(cell: Spots, base: Spots) -> list[Window]:
    """Group neighbouring trials of both sides, place by place; places that only one side has are left out.

    Cells that ran by turns have one trial each in a window. If the times are unknown, the k-th trials of both are
    neighbours.
    """
    is_timed = all(began for _, began in (*cell, *base))
    at: dict[Hashable, list[tuple[Any, int, int]]] = {}
    for side, spots in enumerate((cell, base)):
        numbers = Counter[Hashable]()
        for position, (place, began) in enumerate(spots):
            at.setdefault(place, []).append((began if is_timed else numbers[place], side, position))
            numbers[place] += 1
    near = []
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
        near += own
    return near


def by_turns(near: Sequence[Window], cell: Spots, base: Spots) -> bool:
    """Whether both sides alternated at their common places, so that changes over time hit both alike."""
    shared = {place for place, _ in cell} & {place for place, _ in base}
    least = sum(min(sum(each == place for each, _ in side) for side in (cell, base)) for place in shared)
    return bool(near) and len(near) >= _BY_TURNS * least


def round_counts(cell: Sequence[TrialFacts], base: Sequence[TrialFacts]) -> tuple[Counts, ...]:
    """Failures and trials of both in each window; empty if they did not run by turns."""
    sides = in_order(cell), in_order(base)
    spots = [[(facts.place.key, facts.started_at) for facts in side] for side in sides]
    near = windows(*spots)
    if not by_turns(near, *spots):
        return ()
    failed = [[facts.is_failure for facts in side] for side in sides]
    return tuple(
        (sum(failed[0][each] for each in ours), len(ours), sum(failed[1][each] for each in theirs), len(theirs))
        for ours, theirs in near
    )


def is_sooner(cell: Sequence[TrialFacts], base: Sequence[TrialFacts]) -> bool:
    """Whether one of both ran clearly sooner, so that a drift would look like a difference."""
    if not all(facts.started_at for facts in (*cell, *base)):
        return False
    both = in_order([*cell, *base])
    first = {id(facts) for facts in both[: len(both) // 2]}
    shares = [sum(id(facts) in first for facts in side) / len(side) for side in (cell, base)]
    return abs(shares[0] - shares[1]) > _SOONER


@dataclass(frozen=True)
class Rounds:
    """Result of ``analyse_rounds``.

    Attributes:
        p: of "cells share nothing from round to round", whatever makes failures of one cell come in runs.
        left: serial correlation within cells that is not shared; ``error``: its standard error.
    """

    p: float = 1.0
    left: float = 0.0
    error: float = 1.0

    @property
    def are_shared(self) -> bool:
        """Whether trials of one round tend to end alike in all cells."""
        return self.p <= _SHARED

    @property
    def explain_runs(self) -> bool:
        """Whether effects shared by rounds may explain all runs of failures."""
        return self.p <= _PROBABLY and self.left < _LEFT * self.error


def analyse_rounds(cells: Sequence[Sequence[TrialFacts]]) -> Rounds:
    """Test whether cells share something from round to round; ``cells`` are the counted trials of each.

    A residual is a trial's outcome minus the rate of its cell at its place. The test rotates each cell's series by a
    random number of rounds, which keeps the runs within it. p is the share of rotations in which the products of
    neighbouring residuals of different cells (of one round, or one apart) are as large as in the data.
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
    """The residual of each round, 0 without a trial; ``None`` if all trials of each place end alike."""
    import numpy as np

    at: dict[Hashable, list[bool]] = {}
    for facts in trials:
        at.setdefault(facts.place.key, []).append(facts.is_failure)
    means = {place: sum(failed) / len(failed) for place, failed in at.items()}
    residuals = np.zeros(len(rounds))
    number = {index: position for position, index in enumerate(rounds)}
    for facts in trials:
        residuals[number[facts.index]] += facts.is_failure - means[facts.place.key]
    return residuals if residuals.any() else None
