"""Evidence about the difference of two failure rates that may be looked at after every pair of trials.

An e-process is a bettor's capital: it starts at 1 and cannot be expected to grow while the null hypothesis is true, so
that it ever reaches 20 with a chance of at most 1/20 (Ville's inequality), however often one looks and whatever
decides when one stops.

One pair is one trial of the baseline (failure rate a) and one of the cell (rate b). Against the null "b - a is at most
D" (or at least D; or "b / a is at most R", or at least R) each pair is bet on by the E-variable of Turner, Ly &
Grünwald 2024, "Generic E-variables for exact sequential k-sample tests that allow for optional stopping" (theorem 1;
arXiv 2106.02693), for other nulls than equality Turner & Grünwald 2023, "Exact anytime-valid confidence intervals for
contingency tables and beyond" (arXiv 2203.09785):

    p_a1(y_a) p_b1(y_b) / (p_a0(y_a) p_b0(y_b))

with an alternative (a1, b1) that depends on earlier pairs only, and (a0, b0) the pair of rates within the null that is
nearest to it (Kullback-Leibler). The capital is the product over the pairs. It is fair, or worse, for *every* pair of
rates within the null: at rates (a, b) the expected value is f(a) g(b) with affine f and g, both 1 at (a0, b0); log f +
log g is concave, and that (a0, b0) is the nearest point of a convex set says that it does not rise from there in any
direction into the null. So it holds as well while rates drift, as long as they stay within the null.

The alternative is the posterior mean of both rates, given the earlier pairs, under a prior restricted to what the null
excludes. Both papers take the mean under an unrestricted prior. Against a null with a direction that does not bet while
the mean lies in the null, or bets on the wrong side; the restricted one bets from the first pair on, and finds
differences as soon as the papers' test without a direction does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]

# Either rate has the prior Beta(0.35, 0.35), with most weight near 0 and 1, where failures are rare or certain: chosen
# by simulation. It is a grid of equally likely rates.
_PRIOR = 0.35
_RATES = 24
_CHUNK = 128
# Where the restricted prior has less weight than this left, relative to the best-fitting rates, rounding would decide
# the bet.
_NO_BET = 1e-280


@dataclass(frozen=True)
class Contrast:
    """How two rates are compared: ``of`` the baseline's and the cell's; a null says that it is at most, or at least, D.

    ``nearest`` is the pair of rates at the edge of such a null that is nearest to others (Kullback-Leibler).
    """

    of: Callable[[Numbers, Numbers], Numbers]
    nearest: Callable[[Numbers, Numbers, Numbers], tuple[Numbers, Numbers]]


class PairedEProcess:
    """The e-processes against several nulls about a contrast of cell and baseline, for one stream of pairs.

    ``at_most`` holds the D of nulls "the contrast is at most D", ``at_least`` those of nulls "at least D", ascending.
    ``log_capital`` is the logarithm of what all bets have made of 1, first against the former, then the latter.
    """

    def __init__(self, at_most: Sequence[float], at_least: Sequence[float], contrast: Contrast | None = None) -> None:
        self.bets = Bets(at_most, at_least, contrast or DIFFERENCE)
        self.log_capital = np.zeros(len(at_most) + len(at_least))
        self._peaks = np.zeros(len(at_most) + len(at_least))
        self._pairs = self._base_failures = self._cell_failures = 0

    @property
    def peaks(self) -> tuple[Numbers, Numbers]:
        """The logarithm of the most that each capital has ever been, from 0, for the nulls "at most" and "at least".

        exp(-peak) is a p value that is valid at any time.
        """
        split = len(self.bets.at_most)
        return self._peaks[:split], self._peaks[split:]

    def extend(self, base: Sequence[bool], cell: Sequence[bool]) -> None:
        """Bet on further pairs; True is a failure. Both are equally long."""
        for start in range(0, len(base), _CHUNK):
            self._extend(np.asarray(base[start : start + _CHUNK], int), np.asarray(cell[start : start + _CHUNK], int))

    def _extend(self, base: Counts, cell: Counts) -> None:
        # Each bet knows what came before its pair, and nothing else.
        base_before = self._base_failures + np.cumsum(base) - base
        cell_before = self._cell_failures + np.cumsum(cell) - cell
        on_base, on_cell = self.bets.gains(self._pairs + np.arange(len(base)), base_before, cell_before)
        pairs = np.arange(len(base))
        capital = self.log_capital + np.cumsum(on_base[base, pairs] + on_cell[cell, pairs], axis=0)
        self.log_capital = capital[-1]
        self._peaks = np.maximum(self._peaks, capital.max(axis=0))
        self._pairs += len(base)
        self._base_failures += int(base.sum())
        self._cell_failures += int(cell.sum())


class Bets:
    def __init__(self, at_most: Sequence[float], at_least: Sequence[float], contrast: Contrast | None = None) -> None:
        self.at_most, self.at_least = tuple(at_most), tuple(at_least)
        self._contrast = contrast or DIFFERENCE
        self._values = np.array([*at_most, *at_least], float)
        self._prior = _prior(self._contrast)
        # Which rates of the grid are alternatives to a null: its last ones, or its first.
        self._first_above = np.searchsorted(self._prior.contrasts, np.array(at_most, float) + 1e-12)
        self._first_not_below = np.searchsorted(self._prior.contrasts, np.array(at_least, float) - 1e-12)

    def gains(self, pairs: Counts, base_failures: Counts, cell_failures: Counts) -> tuple[Numbers, Numbers]:
        """By how much the logarithm of each capital changes, for the baseline's trial and for the cell's.

        The arguments are the counts before the pair, one number for each of several pairs. Both results have the shape
        (2, pairs, nulls): if the trial ends well, and if it fails.
        """
        base_rate, cell_rate, bets = self._alternatives(pairs, base_failures, cell_failures)
        on_base, on_cell = log_ratios(base_rate, cell_rate, *self._contrast.nearest(base_rate, cell_rate, self._values))
        return np.where(bets, on_base, 0), np.where(bets, on_cell, 0)

    def _alternatives(self, pairs: Counts, base_failures: Counts, cell_failures: Counts) -> tuple[Numbers, ...]:
        prior = self._prior
        counts = np.stack([base_failures, pairs - base_failures, cell_failures, pairs - cell_failures], axis=-1)
        likelihoods = counts @ prior.logs
        weights = np.exp(likelihoods - likelihoods.max(axis=1, keepdims=True))
        moments = np.stack([weights, weights * prior.base, weights * prior.cell])
        above = np.cumsum(moments[:, :, ::-1], axis=2)[:, :, ::-1]
        below = np.cumsum(moments, axis=2)
        edge = np.zeros((3, len(counts), 1))
        above = np.concatenate([above, edge], axis=2)[:, :, self._first_above]
        below = np.concatenate([edge, below], axis=2)[:, :, self._first_not_below]
        weight, base, cell = np.concatenate([above, below], axis=2)
        bets = weight > _NO_BET
        weight = np.where(bets, weight, 1)
        return np.where(bets, base / weight, 0.5), np.where(bets, cell / weight, 0.5), bets


def log_ratios(a1: Numbers, b1: Numbers, a0: Numbers, b0: Numbers) -> tuple[Numbers, Numbers]:
    """The logarithm of the E-variable of rates within a null, for the baseline's trial and for the cell's.

    The first axis of both results is how the trial ends: well, or with a failure.
    """
    return (
        np.log(np.stack([(1 - a1) / (1 - a0), a1 / a0])),
        np.log(np.stack([(1 - b1) / (1 - b0), b1 / b0])),
    )


def nearest_of_ratio(a1: Numbers, b1: Numbers, ratio: Numbers) -> tuple[Numbers, Numbers]:
    """The pair of rates (a0, ratio * a0) that is nearest to (a1, b1), all above 0 and below 1.

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
    """The pair of rates (a0, a0 + difference) that is nearest to (a1, b1)."""
    rate = nearest_in_null(a1, b1, difference)
    return rate, rate + difference


DIFFERENCE = Contrast(lambda base, cell: cell - base, nearest_of_difference)
RATIO = Contrast(lambda base, cell: cell / base, nearest_of_ratio)


def nearest_in_null(a1: Numbers, b1: Numbers, difference: Numbers) -> Numbers:
    """The base rate a0 of the pair of rates (a0, a0 + difference) that is nearest to (a1, b1).

    All rates lie above 0 and below 1. Nearest in the Kullback-Leibler sense, so it is the constrained
    maximum-likelihood estimate of Miettinen & Nurminen 1985, "Comparative analysis of two rates", with one observation
    each: the root of a cubic, in closed form. A step of Newton's method takes away what the arc cosine loses in
    precision.
    """
    square = (3 * difference - 2 - (a1 + b1)) / 6
    linear = ((difference - 2 - 2 * a1) * difference + a1 + b1) / 6
    squared = square * square
    q = square * (squared - 1.5 * linear) + a1 * difference * (1 - difference) / 4
    p = np.sqrt(np.maximum(squared - linear, 1e-300))
    turn = np.arccos(np.minimum(np.abs(q) / p**3, 1))
    rate = np.copysign(2 * p, q) * np.cos((np.pi + turn) / 3) - square
    # It lies between the two pairs within the null that share one rate with (a1, b1).
    low = np.maximum(np.minimum(a1, b1 - difference), np.maximum(0, -difference))
    high = np.minimum(np.maximum(a1, b1 - difference), np.minimum(1, 1 - difference))
    brink = (high - low) * 1e-9
    low, high = low + brink, high - brink
    rate = np.maximum(np.minimum(rate, high), low)
    other = rate + difference
    a_failed, a_ok, b_failed, b_ok = a1 / rate, (1 - a1) / (1 - rate), b1 / other, (1 - b1) / (1 - other)
    bend = a_failed / rate + a_ok / (1 - rate) + b_failed / other + b_ok / (1 - other)
    rate = rate - (a_ok - a_failed + b_ok - b_failed) / bend
    nearest: Numbers = np.maximum(np.minimum(rate, high), low)
    return nearest


class _Prior:
    def __init__(self, contrast: Contrast) -> None:
        from scipy.special import betaincinv

        quantiles = betaincinv(_PRIOR, _PRIOR, (np.arange(_RATES) + 0.5) / _RATES)
        base, cell = (rates.ravel() for rates in np.meshgrid(quantiles, quantiles))
        contrasts = contrast.of(base, cell)
        order = np.argsort(contrasts, kind="stable")
        self.base, self.cell, self.contrasts = base[order], cell[order], contrasts[order]
        self.logs = np.stack([np.log(self.base), np.log1p(-self.base), np.log(self.cell), np.log1p(-self.cell)])


@lru_cache(maxsize=2)
def _prior(contrast: Contrast) -> _Prior:
    return _Prior(contrast)
