"""Comparing a cell with its baseline while trials go on: p values and an interval that are valid whenever one looks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log
from typing import TYPE_CHECKING

from pytest_aorta.triage import Margin
from pytest_aorta.triage.rates import RATIO_LEVEL, Interval

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pytest_aorta.triage.e_process import PairedEProcess

# The ends of the intervals lie on these grids, rounded outwards.
_GRID = [step / 100 for step in range(-99, 100)]
_RATIOS = [0.01, 0.02, *(step / 20 for step in range(1, 20)), 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0]


#: Probabilities that a cell halves the rate, and that it raises it: where both are below, it is given up.
_HALVED, _RAISED = 0.03, 0.8

#: Pairs before that is asked.
_LEAST = 8


@dataclass(frozen=True)
class SequentialComparison:
    """What the pairs so far say of d, the cell's failure rate less the baseline's.

    It may be looked at after every pair, and acted upon, without a correction for looking. ``p`` is the two-sided p
    value of "no difference", and never rises as pairs are added. ``interval`` is a confidence sequence: with the stated
    probability it holds d after every pair at once; its ends are multiples of 0.01, or the margin. ``ratio`` is one of
    the cell's rate divided by the baseline's, at 99 %.
    """

    p: float
    interval: Interval
    ratio: Interval


class SequentialTest:
    """The comparison of one cell with its baseline, pair by pair.

    The result depends on the pairs and their order alone, not on when it is looked at. A pair costs nothing until the
    comparison is asked for; then about 0.15 ms, and half of that where many pairs have come since the last time.
    """

    def __init__(self, margin: Margin, level: float = 0.95) -> None:
        self._margin = margin
        self._level = level
        self._waiting: list[tuple[bool, bool]] = []
        self._processes: tuple[PairedEProcess, PairedEProcess] | None = None
        self._comparison: SequentialComparison | None = None
        self.pairs: list[tuple[bool, bool]] = []

    def extend(self, pairs: Sequence[tuple[bool, bool]]) -> None:
        """The next pairs, in their order: whether the trial of the baseline, and that of the cell, has failed."""
        self._waiting += pairs
        self.pairs += pairs

    def comparison(self) -> SequentialComparison:
        """What the pairs so far say."""
        if self._comparison is None or self._waiting:
            difference, ratio = self._up_to_date()
            against_at_most, against_at_least = difference.peaks
            p_higher = exp(-against_at_most[bisect_left(difference.bets.at_most, 0)])
            p_lower = exp(-against_at_least[bisect_left(difference.bets.at_least, 0)])
            self._comparison = SequentialComparison(
                min(1.0, 2 * min(p_lower, p_higher)),
                self._interval(difference, -1.0, 1.0, self._level),
                self._interval(ratio, 0.0, inf, RATIO_LEVEL),
            )
        return self._comparison

    def _interval(self, process: PairedEProcess, lowest: float, highest: float, level: float) -> Interval:
        against_at_most, against_at_least = process.peaks
        # Each end errs with half the probability.
        needed = log(2 / (1 - level))
        low = (lowest, *process.bets.at_most)[_refuted(against_at_most, needed)]
        high = (highest, *reversed(process.bets.at_least))[_refuted(against_at_least[::-1], needed)]
        # The ends can cross only where the rates have changed meanwhile: then all in between has been plausible.
        return Interval(min(low, high), max(low, high))

    def _up_to_date(self) -> tuple[PairedEProcess, PairedEProcess]:
        if self._processes is None:
            from pytest_aorta.triage.e_process import RATIO, PairedEProcess

            points, share = self._margin.points, self._margin.share
            differences = sorted({*_GRID, -points, points} - {-1.0, 1.0})
            ratios = sorted({*_RATIOS, *((1 - share, 1 + share) if share < 1 else ())})
            self._processes = PairedEProcess(differences, differences), PairedEProcess(ratios, ratios, RATIO)
        if self._waiting:
            base, cell = zip(*self._waiting, strict=True)
            for process in self._processes:
                process.extend(base, cell)
            self._waiting.clear()
        return self._processes


class Confirmation:
    """Whether the second of each pair, which fails less often than the first, does so again in fresh pairs.

    The first pairs that show it at ``level`` are not looked at any more; the pairs after them have to show it again, at
    95 %. So what made the first ones look good by chance, or for a while, is not called a cure.
    """

    def __init__(self, level: float) -> None:
        self._level = level
        self._fresh = False
        self._process: PairedEProcess | None = None
        self.pairs: list[tuple[bool, bool]] = []
        self.is_confirmed = False

    def extend(self, pairs: Sequence[tuple[bool, bool]]) -> None:
        """The next pairs, as those of a ``SequentialTest``."""
        from pytest_aorta.triage.e_process import PairedEProcess

        self.pairs += pairs
        for base, cell in pairs:
            if self.is_confirmed:
                return
            if self._process is None:
                self._process = PairedEProcess([], [0.0])
            self._process.extend([base], [cell])
            if self._process.peaks[1][0] >= -log(0.05 if self._fresh else self._level / 2):
                self.is_confirmed, self._fresh, self._process = self._fresh, True, None


class Screening:
    """Whether the second of each pair is hopeless as a cure of the first: its trials are better spent elsewhere.

    It ends trials early and is no verdict: how often a cell is called better falsely does not depend on it.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[bool, bool]] = []
        #: Failures of both when that was seen, and the number of pairs; ``None`` until then.
        self.hopeless: tuple[int, int, int] | None = None
        self._failures = (0, 0)

    def extend(self, pairs: Sequence[tuple[bool, bool]]) -> None:
        """The next pairs, as those of a ``SequentialTest``."""
        for base, cell in pairs:
            self.pairs.append((base, cell))
            self._failures = self._failures[0] + base, self._failures[1] + cell
            if self.hopeless is None and is_hopeless(*self._failures, len(self.pairs)):
                self.hopeless = (*self._failures, len(self.pairs))


@lru_cache(maxsize=4096)
def is_hopeless(base_failures: int, failures: int, trials: int) -> bool:
    """Whether a cell hardly halves the baseline's rate, and hardly raises it, after as many trials of both.

    The posterior probabilities of either, with a Jeffreys prior for each rate, are below 3 % and 80 %.
    """
    if not failures or trials < _LEAST:
        return False
    from scipy.special import betainc, betaincinv

    quantiles = [(number + 0.5) / 64 for number in range(64)]
    base = betaincinv(base_failures + 0.5, trials - base_failures + 0.5, quantiles)
    halved, lower = (betainc(failures + 0.5, trials - failures + 0.5, share * base).mean() for share in (0.5, 1.0))
    return bool(halved < _HALVED and lower > 1 - _RAISED)


def _refuted(peaks: npt.NDArray[np.float64], needed: float) -> int:
    kept = (peaks < needed).nonzero()[0]
    return int(kept[0]) if len(kept) else len(peaks)


def sequential_comparison(
    base: Sequence[bool], cell: Sequence[bool], margin: Margin, level: float = 0.95
) -> SequentialComparison:
    """The comparison of trials that are all known.

    The k-th of the baseline is paired with the k-th of the cell; what one side has more than the other is not used.
    """
    test = SequentialTest(margin, level)
    test.extend(list(zip(base, cell, strict=False)))
    return test.comparison()


@lru_cache(maxsize=4096)
def rate_upper_bound_sequential(failures: int, trials: int, level: float = 0.95) -> float:
    """The largest failure rate that is plausible, valid after every trial at once; 1 without a trial.

    The rates p that an e-process has not refuted: the capital of a bet on lower rates, spread over them as by a
    Beta(1/2, 1/2) prior (Robbins 1970, "Statistical methods related to the law of the iterated logarithm": the method
    of mixtures). Against each rate of p or above it is fair or worse.
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
