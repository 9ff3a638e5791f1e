"""Compare a cell with its baseline while trials go on: p values and intervals that are valid at any time.

An e-process is a bettor's capital. It starts at 1 and, while the null hypothesis is true, is not expected to grow: so
it ever reaches 20 with a chance of at most 1/20 (Ville's inequality), however often one looks and whenever one stops.

One pair is one trial of the baseline (failure rate a) and one of the cell (rate b). Against the null "b - a is at most
D" (or at least D; or "b / a is at most R", or at least R) each pair is bet on by the E-variable of Turner, Ly &
Grünwald 2024, "Generic E-variables for exact sequential k-sample tests that allow for optional stopping" (theorem 1;
arXiv 2106.02693), for other nulls than equality Turner & Grünwald 2023, "Exact anytime-valid confidence intervals for
contingency tables and beyond" (arXiv 2203.09785):

    p_a1(y_a) p_b1(y_b) / (p_a0(y_a) p_b0(y_b))

with an alternative (a1, b1): the posterior mean of both rates given the earlier pairs, under a prior that is restricted
to rates that the null excludes (``docs/explanation/statistics.md`` says why); and (a0, b0): the pair of rates within
the null that is nearest to it (Kullback-Leibler). The capital is the product over the pairs. For *every* pair of rates
within the null it is fair or worse. Proof: at rates (a, b) its expected value is f(a) g(b) with affine f and g, both 1
at (a0, b0); log f + log g is concave, and since (a0, b0) is the nearest point of a convex set, it does not rise from
there in any direction into the null. This also holds while rates drift, as long as they stay within the null.

Trials that share a start are not independent. Then a pair is one start of each side, and an observation is the share of
its trials that failed. The bet is the mean of the bets on all pairs of a trial of one start and a trial of the other.
Each of these is fair or worse, whatever the trials of a start have in common, and so is their mean (Vovk & Wang 2021,
"E-values: calibration, combination and applications": an average of E-values is an E-value).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, inf, log
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_aorta.triage import Margin
from pytest_aorta.triage.rates import RATIO_LEVEL, Interval

Numbers: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

#: Outcome of the baseline's and of the cell's trial, 1 for a failure; for starts, the failed share of their trials.
Pairs: TypeAlias = Sequence[tuple[float, float]]

# The ends of the intervals lie on these grids, rounded outwards.
_GRID = [step / 100 for step in range(-99, 100)]
_RATIOS = [0.01, 0.02, *(step / 20 for step in range(1, 20)), 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0]

# Each rate has the prior Beta(0.35, 0.35), chosen by simulation: most weight is near 0 and 1, where failures are rare
# or certain. It is represented by so many equally likely rates.
_PRIOR, _RATES = 0.35, 24

# No bet if the restricted prior has less weight than this, relative to the best-fitting rates: rounding would decide.
_NO_BET = 1e-280

#: Pairs that are bet on at once.
_CHUNK = 128

#: A cell is given up if the probabilities that it halves, and that it raises, the rate are below these, after at least
#: so many pairs.
_HALVED, _RAISED, _LEAST = 0.03, 0.8, 8


@dataclass(frozen=True)
class Contrast:
    """A comparison of two rates: ``of(base, cell)`` is its value.

    ``nearest`` gives the nearest pair of rates (Kullback-Leibler) with a given value.
    """

    of: Callable[[Numbers, Numbers], Numbers]
    nearest: Callable[[Numbers, Numbers, Numbers], tuple[Numbers, Numbers]]


def nearest_of_ratio(a1: Numbers, b1: Numbers, ratio: Numbers) -> tuple[Numbers, Numbers]:
    """The pair of rates (a0, ratio * a0) nearest to (a1, b1), all above 0 and below 1.

    The constrained maximum-likelihood estimate of Miettinen & Nurminen 1985 for a ratio of rates, with one observation
    each: the smaller root of 2 R a^2 - (1 + b1 + R (1 + a1)) a + a1 + b1, written so that nothing cancels.
    """
    linear = 1 + b1 + ratio * (1 + a1)
    root = np.sqrt(np.maximum(linear * linear - 8 * ratio * (a1 + b1), 0))
    rate = 2 * (a1 + b1) / (linear + root)
    highest = np.minimum(1, 1 / ratio)
    rate = np.minimum(np.maximum(rate, highest * 1e-12), highest * (1 - 1e-9))
    return rate, rate * ratio


def nearest_of_difference(a1: Numbers, b1: Numbers, difference: Numbers) -> tuple[Numbers, Numbers]:
    """The pair of rates (a0, a0 + difference) nearest to (a1, b1), all above 0 and below 1.

    The constrained maximum-likelihood estimate of Miettinen & Nurminen 1985, "Comparative analysis of two rates", with
    one observation each: the root of a cubic, in closed form. A step of Newton's method makes up for the precision that
    the arc cosine loses.
    """
    square = (3 * difference - 2 - (a1 + b1)) / 6
    linear = ((difference - 2 - 2 * a1) * difference + a1 + b1) / 6
    squared = square * square
    q = square * (squared - 1.5 * linear) + a1 * difference * (1 - difference) / 4
    p = np.sqrt(np.maximum(squared - linear, 1e-300))
    turn = np.arccos(np.minimum(np.abs(q) / p**3, 1))
    rate = np.copysign(2 * p, q) * np.cos((np.pi + turn) / 3) - square
    # It lies between the two pairs within the null that have one rate in common with (a1, b1).
    low = np.maximum(np.minimum(a1, b1 - difference), np.maximum(0, -difference))
    high = np.minimum(np.maximum(a1, b1 - difference), np.minimum(1, 1 - difference))
    brink = (high - low) * 1e-9
    low, high = low + brink, high - brink
    rate = np.maximum(np.minimum(rate, high), low)
    other = rate + difference
    a_failed, a_ok, b_failed, b_ok = a1 / rate, (1 - a1) / (1 - rate), b1 / other, (1 - b1) / (1 - other)
    bend = a_failed / rate + a_ok / (1 - rate) + b_failed / other + b_ok / (1 - other)
    rate = np.maximum(np.minimum(rate - (a_ok - a_failed + b_ok - b_failed) / bend, high), low)
    return rate, rate + difference


DIFFERENCE = Contrast(lambda base, cell: cell - base, nearest_of_difference)
RATIO = Contrast(lambda base, cell: cell / base, nearest_of_ratio)


def log_ratios(a1: Numbers, b1: Numbers, a0: Numbers, b0: Numbers) -> tuple[Numbers, Numbers]:
    """The logarithm of the E-variable against rates within a null, for the baseline's and the cell's trial.

    The first axis of both results is the outcome: passed, failed.
    """
    return (
        np.log(np.stack([(1 - a1) / (1 - a0), a1 / a0])),
        np.log(np.stack([(1 - b1) / (1 - b0), b1 / b0])),
    )


@lru_cache(maxsize=2)
def _prior(contrast: Contrast) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Pairs of equally likely rates, sorted by contrast: baseline's, cell's, contrasts, and logarithms."""
    from scipy.special import betaincinv

    quantiles = betaincinv(_PRIOR, _PRIOR, (np.arange(_RATES) + 0.5) / _RATES)
    base, cell = (rates.ravel() for rates in np.meshgrid(quantiles, quantiles))
    order = np.argsort(contrast.of(base, cell), kind="stable")
    base, cell = base[order], cell[order]
    logs = np.stack([np.log(base), np.log1p(-base), np.log(cell), np.log1p(-cell)])
    return base, cell, contrast.of(base, cell), logs


class PairedEProcess:
    """E-processes against nulls about a contrast of cell and baseline, for one stream of pairs.

    There are two nulls for each of ``values`` (ascending): "the contrast is at most this", then all "at least this".
    ``log_capital`` has the logarithm of the capital of each, in this order.
    """

    def __init__(self, values: Sequence[float], contrast: Contrast = DIFFERENCE) -> None:
        self.values = tuple(values)
        self.log_capital = np.zeros(2 * len(values))
        self._peaks = np.zeros(2 * len(values))
        self._contrast = contrast
        self._nulls = np.array([*values, *values], float)
        self._base, self._cell, contrasts, self._logs = _prior(contrast)
        # Alternatives to a null are the last rates of the grid, or the first.
        self._first_above = np.searchsorted(contrasts, np.array(values, float) + 1e-12)
        self._first_not_below = np.searchsorted(contrasts, np.array(values, float) - 1e-12)
        self._pairs, self._base_failures, self._cell_failures = 0, 0.0, 0.0

    @property
    def peaks(self) -> tuple[Numbers, Numbers]:
        """The logarithm of the largest capital so far, at least 0, for the nulls "at most" and "at least".

        exp(-peak) is a p value that is valid at any time.
        """
        return self._peaks[: len(self.values)], self._peaks[len(self.values) :]

    def extend(self, pairs: Pairs) -> Numbers:
        """Bet on further pairs; return the logarithms of the capitals after each."""
        capitals = [self.log_capital[None]]
        for start in range(0, len(pairs), _CHUNK):
            base, cell = np.asarray(pairs[start : start + _CHUNK], float).T
            number = np.arange(len(base))
            # Each bet depends on earlier pairs only.
            base_before = self._base_failures + np.cumsum(base) - base
            cell_before = self._cell_failures + np.cumsum(cell) - cell
            on_base, on_cell = self.gains(self._pairs + number, base_before, cell_before)
            gained = _log_mean_bets(on_base, base) + _log_mean_bets(on_cell, cell)
            capital = capitals[-1][-1] + np.cumsum(gained, axis=0)
            self._peaks = np.maximum(self._peaks, capital.max(axis=0))
            self._pairs += len(base)
            self._base_failures += float(base.sum())
            self._cell_failures += float(cell.sum())
            capitals.append(capital)
        self.log_capital = capitals[-1][-1]
        return np.concatenate(capitals)[1:]

    def gains(
        self, pairs: Integers, base_failures: Integers | Numbers, cell_failures: Integers | Numbers
    ) -> tuple[Numbers, Numbers]:
        """Change of each log capital by the baseline's trial and by the cell's trial.

        The arguments are counts before each of several pairs. Both results have the shape (2, pairs, nulls); the first
        axis is the outcome: passed, failed.
        """
        counts = np.stack([base_failures, pairs - base_failures, cell_failures, pairs - cell_failures], axis=-1)
        likelihoods = counts @ self._logs
        weights = np.exp(likelihoods - likelihoods.max(axis=1, keepdims=True))
        moments = np.stack([weights, weights * self._base, weights * self._cell])
        above = np.cumsum(moments[:, :, ::-1], axis=2)[:, :, ::-1]
        below = np.cumsum(moments, axis=2)
        edge = np.zeros((3, len(counts), 1))
        above = np.concatenate([above, edge], axis=2)[:, :, self._first_above]
        below = np.concatenate([edge, below], axis=2)[:, :, self._first_not_below]
        weight, base, cell = np.concatenate([above, below], axis=2)
        bets = weight > _NO_BET
        weight = np.where(bets, weight, 1)
        base, cell = np.where(bets, base / weight, 0.5), np.where(bets, cell / weight, 0.5)
        on_base, on_cell = log_ratios(base, cell, *self._contrast.nearest(base, cell, self._nulls))
        return np.where(bets, on_base, 0), np.where(bets, on_cell, 0)


def _log_mean_bets(gains: Numbers, shares: Numbers) -> Numbers:
    """The logarithm of the mean bet on starts with these failed shares."""
    number = np.arange(len(shares))
    is_one = (shares == 0) | (shares == 1)
    bets: Numbers = gains[(shares == 1).astype(int), number]
    if not is_one.all():
        part = shares[~is_one, None]
        ok, failed = np.exp(gains[:, ~is_one])
        bets[~is_one] = np.log((1 - part) * ok + part * failed)
    return bets


@dataclass(frozen=True)
class SequentialComparison:
    """The result for the pairs so far about d, the cell's failure rate minus the baseline's.

    It is valid after every pair, without a correction for looking. ``p`` is the two-sided p value of "no difference";
    it never rises as pairs are added. ``interval`` is a 95 % confidence sequence: with that probability it contains d
    after every pair at once. Its ends are multiples of 0.01, or the margin. ``ratio`` is a 99 % confidence sequence of
    the cell's rate divided by the baseline's.
    """

    p: float
    interval: Interval
    ratio: Interval


class SequentialTest:
    """The comparison of one cell with its baseline, pair by pair.

    The result depends only on the pairs and their order. Pairs cost nothing until the comparison is asked for; then
    about 0.15 ms each.
    """

    def __init__(self, margin: Margin, level: float = 0.95) -> None:
        points, share = margin.points, margin.share
        self._level = level
        self._difference = PairedEProcess(sorted({*_GRID, -points, points} - {-1.0, 1.0}))
        self._ratio = PairedEProcess(sorted({*_RATIOS, *((1 - share, 1 + share) if share < 1 else ())}), RATIO)
        self._comparison: SequentialComparison | None = None
        self._seen = 0
        self.pairs: list[tuple[float, float]] = []

    def comparison(self) -> SequentialComparison:
        """The result for ``pairs``, a list that callers append to."""
        if self._comparison is None or self._seen < len(self.pairs):
            for process in (self._difference, self._ratio):
                process.extend(self.pairs[self._seen :])
            self._seen = len(self.pairs)
            zero = bisect_left(self._difference.values, 0)
            self._comparison = SequentialComparison(
                min(1.0, 2 * exp(-max(peaks[zero] for peaks in self._difference.peaks))),
                _interval(self._difference, -1.0, 1.0, self._level),
                _interval(self._ratio, 0.0, inf, RATIO_LEVEL),
            )
        return self._comparison


def _interval(process: PairedEProcess, lowest: float, highest: float, level: float) -> Interval:
    # Each end is wrong with half of the probability.
    needed = log(2 / (1 - level))

    def first_kept(peaks: Numbers) -> int:
        kept = (peaks < needed).nonzero()[0]
        return int(kept[0]) if len(kept) else len(peaks)

    against_at_most, against_at_least = process.peaks
    low = (lowest, *process.values)[first_kept(against_at_most)]
    high = (highest, *reversed(process.values))[first_kept(against_at_least[::-1])]
    # The ends cross only if the rates have changed meanwhile: then every value in between was plausible once.
    return Interval(min(low, high), max(low, high))


def is_confirmed(pairs: Pairs, level: float) -> bool:
    """Whether the second of each pair fails less often than the first, and does so again in fresh pairs.

    After the first pairs show it at ``level``, later pairs have to show it again at 95 %. So a cell that looked good by
    chance, or for a while, is not called a cure.
    """
    for p in (level / 2, 0.05):
        shown = (PairedEProcess([0.0]).extend(pairs)[:, 1] >= -log(p)).nonzero()[0]
        if not len(shown):
            return False
        pairs = pairs[int(shown[0]) + 1 :]
    return True


def hopeless_at(pairs: Pairs) -> tuple[float, float, int] | None:
    """When the second of each pair became hopeless as a cure: failures of both, and the number of pairs.

    This only ends trials early; how often a cell is falsely called better does not depend on it.
    """
    base_failures = failures = 0.0
    for number, (base, cell) in enumerate(pairs, 1):
        base_failures, failures = base_failures + base, failures + cell
        if is_hopeless(base_failures, failures, number):
            return base_failures, failures, number
    return None


@lru_cache(maxsize=4096)
def is_hopeless(base_failures: float, failures: float, trials: int) -> bool:
    """Whether a cell probably neither halves nor raises the baseline's rate, after equally many trials of both.

    The posterior probabilities, with a Jeffreys prior for each rate, are below 3 % and 80 %.
    """
    if not failures or trials < _LEAST:
        return False
    from scipy.special import betainc, betaincinv

    quantiles = [(number + 0.5) / 64 for number in range(64)]
    base = betaincinv(base_failures + 0.5, trials - base_failures + 0.5, quantiles)
    halved, lower = (betainc(failures + 0.5, trials - failures + 0.5, share * base).mean() for share in (0.5, 1.0))
    return bool(halved < _HALVED and lower > 1 - _RAISED)


@lru_cache(maxsize=4096)
def rate_upper_bound_sequential(failures: int, trials: int) -> float:
    """Upper 95 % bound on the failure rate, valid after every trial at once; 1 without a trial.

    The largest rate that an e-process has not refuted: the capital of a bet on lower rates, spread over them by a
    Beta(1/2, 1/2) prior (Robbins 1970, "Statistical methods related to the law of the iterated logarithm": the method
    of mixtures). Against each rate at or above the bound the bet is fair or worse.
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

    # The capital grows with the rate, from the observed rate on.
    millionths = range(ceil(10**6 * failures / trials), 10**6)
    return (millionths.start + bisect_left(millionths, -log(0.05), key=lambda rate: log_capital(rate / 10**6))) / 10**6
