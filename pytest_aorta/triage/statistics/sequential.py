"""Comparing a cell with its baseline while trials go on: p values and an interval that are valid whenever one looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log
from typing import TYPE_CHECKING

from pytest_aorta.triage.statistics.interval import Interval

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# The ends of the interval lie on this grid, rounded outwards.
_GRID = [step / 100 for step in range(-99, 100)]


@dataclass(frozen=True)
class SequentialComparison:
    """What the pairs so far say of d, the cell's failure rate less the baseline's.

    All of it may be looked at after every pair, and acted upon, without a correction for looking. ``p`` is the two-sided p value
    of "no difference", ``p_lower`` that of "the cell's rate is not lower", ``p_higher`` of "not higher", ``p_within`` of "d lies
    outside of the margin" (two one-sided tests); none of them rises as pairs are added. ``interval`` is a confidence sequence:
    with the stated probability it holds d after every pair at once; its ends are multiples of 0.01.
    """

    pairs: int
    p: float
    p_lower: float
    p_higher: float
    p_within: float
    interval: Interval


class SequentialTest:
    """The comparison of one cell with its baseline, pair by pair.

    The result depends on the pairs and their order alone, not on when it is looked at. A pair costs about 0.1 ms, and the
    interval, which is brought up to date only when asked for, about 0.3 ms per pair.
    """

    def __init__(self, margin: float, level: float = 0.95) -> None:
        from pytest_aorta.triage.statistics.paired_e_process import PairedEProcess

        self._tests = PairedEProcess([0.0, -margin], [0.0, margin])
        self._sequence = PairedEProcess(_GRID, _GRID)
        self._level = level
        self._waiting: list[tuple[bool, bool]] = []  # pairs that the interval does not know yet
        self.pairs = 0

    def add(self, base_failed: bool, cell_failed: bool) -> None:
        """The next pair: one trial of the baseline, one of the cell."""
        self.extend([base_failed], [cell_failed])

    def extend(self, base_failed: Sequence[bool], cell_failed: Sequence[bool]) -> None:
        """Some pairs at once, in their order."""
        self._tests.extend(base_failed, cell_failed)
        self._waiting += zip(base_failed, cell_failed, strict=True)
        self.pairs += len(base_failed)

    def comparison(self) -> SequentialComparison:
        """What the pairs so far say."""
        not_higher, far_below = (exp(-peak) for peak in self._tests.peaks_at_most)
        not_lower, far_above = (exp(-peak) for peak in self._tests.peaks_at_least)
        return SequentialComparison(
            pairs=self.pairs,
            p=min(1.0, 2 * min(not_higher, not_lower)),
            p_lower=not_lower,
            p_higher=not_higher,
            p_within=max(far_below, far_above),
            interval=self._interval(),
        )

    def _interval(self) -> Interval:
        if self._waiting:
            base, cell = zip(*self._waiting, strict=True)
            self._sequence.extend(base, cell)
            self._waiting.clear()
        # Each end errs with half the probability. An end is the last difference, from its side, before the first that is not
        # refuted: whatever lies between two points of the grid is kept.
        needed = log(2 / (1 - self._level))
        above = _refuted(self._sequence.peaks_at_most, needed)
        below = _refuted(self._sequence.peaks_at_least[::-1], needed)
        low = _GRID[above - 1] if above else -1.0
        high = _GRID[-below] if below else 1.0
        # Both ends can cross only when the rates have changed in between; then neither is to be trusted.
        return Interval(low, high) if low <= high else Interval(min(low, high), max(low, high))


def _refuted(peaks: npt.NDArray[np.float64], needed: float) -> int:
    """How many of the first nulls are refuted without a gap."""
    kept = (peaks < needed).nonzero()[0]
    return int(kept[0]) if len(kept) else len(peaks)


def sequential_comparison(
    base: Sequence[bool], cell: Sequence[bool], margin: float, level: float = 0.95
) -> SequentialComparison:
    """The comparison of trials that are all known: the k-th of the baseline with the k-th of the cell; True is a failure.

    What one side has more than the other is not used.
    """
    pairs = min(len(base), len(cell))
    test = SequentialTest(margin, level)
    test.extend(base[:pairs], cell[:pairs])
    return test.comparison()


@lru_cache(maxsize=4096)
def rate_upper_bound_sequential(failures: int, trials: int, level: float = 0.95) -> float:
    """The largest failure rate that is plausible, valid after every trial at once; 1 without a trial.

    The rates p that an e-process has not refuted: the capital of a bet on lower rates, spread over them as by a Beta(1/2, 1/2)
    prior (Robbins 1970, "Statistical methods related to the law of the iterated logarithm": the method of mixtures). Against
    each rate of p or above it is fair or worse.
    """
    if trials == 0:
        return 1.0
    from scipy.special import betainc, betaln

    successes = trials - failures
    wealth_of_all = betaln(failures + 0.5, successes + 0.5) - betaln(0.5, 0.5)

    def log_capital(rate: float) -> float:
        lower_rates = betainc(failures + 0.5, successes + 0.5, rate) / betainc(0.5, 0.5, rate)
        likelihood = (failures * log(rate) if failures else 0.0) + successes * log(1 - rate)
        return float(wealth_of_all + log(lower_rates) - likelihood) if lower_rates > 0 else -inf

    low, high, needed = failures / trials, 1.0, -log(1 - level)
    while high - low > 1e-6:
        middle = (low + high) / 2
        if log_capital(middle) < needed:
            low = middle
        else:
            high = middle
    return high
