"""Evidence about the difference of two failure rates that may be looked at after every pair of trials.

An e-process is a bettor's capital: it starts at 1 and cannot be expected to grow while the null hypothesis is true, so that it
ever reaches 20 with a chance of at most 1/20 (Ville's inequality), however often one looks and whatever decides when one stops.

One pair is one trial of the baseline (failure rate a) and one of the cell (rate b). Against the null "b - a is at most D" (or
at least D) each pair is bet on by the E-variable of Turner, Ly & Grünwald 2024, "Generic E-variables for exact sequential
k-sample tests that allow for optional stopping" (theorem 1; arXiv 2106.02693), for other nulls than equality Turner & Grünwald
2023, "Exact anytime-valid confidence intervals for contingency tables and beyond" (arXiv 2203.09785):

    p_a1(y_a) p_b1(y_b) / (p_a0(y_a) p_b0(y_b))

with an alternative (a1, b1) that depends on earlier pairs only, and (a0, b0) the pair of rates within the null that is nearest
to it (Kullback-Leibler). The capital is the product over the pairs. It is fair, or worse, for *every* pair of rates within the
null: at rates (a, b) the expected value is f(a) g(b) with affine f and g, both 1 at (a0, b0); log f + log g is concave, and that
(a0, b0) is the nearest point of a convex set says that it does not rise from there in any direction into the null. So it holds
as well while rates drift, as long as they stay within the null.

The alternative is the posterior mean of both rates, given the earlier pairs, under a prior restricted to what the null excludes.
Both papers take the mean under an unrestricted prior and do not bet while it lies in the null. The restriction finds the same
differences sooner (docs/statistics.md has the numbers), because it bets from the first pair on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.float64]

# Beta(PRIOR, PRIOR) for either rate: most weight near 0 and 1, where failures are rare or certain. Chosen by simulation.
PRIOR = 0.35
_GRID = 24
_CHUNK = 128
# Where the restricted prior has less weight than this left, relative to the best-fitting rates, rounding would decide the bet.
_NO_BET = 1e-280


class PairedEProcess:
    """The e-processes against several nulls about the difference (cell less baseline), for one stream of pairs.

    ``at_most`` holds the D of nulls "the difference is at most D", ``at_least`` those of nulls "at least D". ``peaks_at_most``
    and ``peaks_at_least`` are the logarithms of the largest value that each has reached, at least 0: exp(-peak) is a p value
    that is valid at any time.
    """

    def __init__(self, at_most: Sequence[float], at_least: Sequence[float]) -> None:
        self._differences = np.concatenate([np.asarray(at_most, float), np.asarray(at_least, float)])
        self._split = len(at_most)
        self._first_above = np.searchsorted(_prior().differences, self._differences[: self._split] + 1e-12)
        self._first_not_below = np.searchsorted(_prior().differences, self._differences[self._split :] - 1e-12)
        self._log_capital = np.zeros(len(self._differences))
        self._peaks = np.zeros(len(self._differences))
        self._pairs = self._base_failures = self._cell_failures = 0

    @property
    def peaks_at_most(self) -> Numbers:
        """One per null "at most"."""
        return self._peaks[: self._split]

    @property
    def peaks_at_least(self) -> Numbers:
        """One per null "at least"."""
        return self._peaks[self._split :]

    def extend(self, base: Sequence[bool], cell: Sequence[bool]) -> None:
        """Bet on further pairs; True is a failure. Both are equally long."""
        for start in range(0, len(base), _CHUNK):
            self._bet(np.asarray(base[start : start + _CHUNK], bool), np.asarray(cell[start : start + _CHUNK], bool))

    def _bet(self, base: npt.NDArray[np.bool_], cell: npt.NDArray[np.bool_]) -> None:
        base_before = self._base_failures + np.cumsum(base) - base
        cell_before = self._cell_failures + np.cumsum(cell) - cell
        pairs_before = self._pairs + np.arange(len(base))
        a1, b1, bets = self._alternatives(pairs_before, base_before, cell_before)
        a0 = nearest_in_null(a1, b1, self._differences)
        b0 = a0 + self._differences
        gain = np.where(base[:, None], np.log(a1 / a0), np.log((1 - a1) / (1 - a0)))
        gain += np.where(cell[:, None], np.log(b1 / b0), np.log((1 - b1) / (1 - b0)))
        capital = self._log_capital + np.cumsum(np.where(bets, gain, 0.0), axis=0)
        self._log_capital = capital[-1]
        self._peaks = np.maximum(self._peaks, capital.max(axis=0))
        self._pairs += len(base)
        self._base_failures += int(base.sum())
        self._cell_failures += int(cell.sum())

    def _alternatives(self, pairs: Numbers, base_failures: Numbers, cell_failures: Numbers) -> tuple[Numbers, ...]:
        """Both rates to bet on, and whether there is a bet at all; each of shape (pairs, nulls)."""
        prior = _prior()
        counts = np.stack([base_failures, pairs - base_failures, cell_failures, pairs - cell_failures], axis=-1)
        likelihoods = counts @ prior.logs
        weights = np.exp(likelihoods - likelihoods.max(axis=1, keepdims=True))
        # One row each of: the weights, the base rates and the cell rates times their weights. The alternatives to a null are
        # the last of the grid, or the first, as it is in the order of the difference.
        moments = np.stack([weights, weights * prior.base, weights * prior.cell])
        above = np.cumsum(moments[:, :, ::-1], axis=2)[:, :, ::-1]
        below = np.cumsum(moments, axis=2)
        edge = np.zeros((*moments.shape[:2], 1))
        above = np.concatenate([above, edge], axis=2)[:, :, self._first_above]
        below = np.concatenate([edge, below], axis=2)[:, :, self._first_not_below]
        weight, base, cell = np.concatenate([above, below], axis=2)
        bets = weight > _NO_BET
        weight = np.where(bets, weight, 1.0)
        return np.where(bets, base / weight, 0.5), np.where(bets, cell / weight, 0.5), bets


def nearest_in_null(a1: Numbers, b1: Numbers, difference: Numbers) -> Numbers:
    """The base rate a0 of the pair of rates (a0, a0 + difference) that is nearest to (a1, b1), all rates above 0 and below 1.

    Nearest in the Kullback-Leibler sense, so it is the constrained maximum-likelihood estimate of Miettinen & Nurminen 1985,
    "Comparative analysis of two rates", with one observation each: the root of a cubic, in closed form. Two steps of Newton's
    method take away what the arc cosine loses in precision.
    """
    square = 3 * difference - 2 - (a1 + b1)
    linear = (difference - 2 - 2 * a1) * difference + a1 + b1
    constant = a1 * difference * (1 - difference)
    q = (square / 6) ** 3 - square * linear / 24 + constant / 4
    p = np.copysign(np.sqrt(np.maximum((square / 6) ** 2 - linear / 6, 1e-300)), q)
    rate = 2 * p * np.cos((np.pi + np.arccos(np.clip(q / p**3, -1, 1))) / 3) - square / 6
    # The nearest pair is between the two that share one rate with (a1, b1).
    low, high = np.minimum(a1, b1 - difference), np.maximum(a1, b1 - difference)
    low, high = np.maximum(low, np.maximum(0, -difference)), np.minimum(high, np.minimum(1, 1 - difference))
    for _ in range(2):
        rate = np.clip(rate, low + (high - low) * 1e-9, high - (high - low) * 1e-9)
        other = rate + difference
        slope = (1 - a1) / (1 - rate) - a1 / rate + (1 - b1) / (1 - other) - b1 / other
        bend = (1 - a1) / (1 - rate) ** 2 + a1 / rate**2 + (1 - b1) / (1 - other) ** 2 + b1 / other**2
        rate = rate - slope / bend
    return np.clip(rate, low + (high - low) * 1e-9, high - (high - low) * 1e-9)


class _Prior:
    """A grid of pairs of rates with equal weights, in the order of their difference."""

    def __init__(self) -> None:
        from scipy.special import betaincinv

        quantiles = betaincinv(PRIOR, PRIOR, (np.arange(_GRID) + 0.5) / _GRID)
        base, cell = (rates.ravel() for rates in np.meshgrid(quantiles, quantiles))
        order = np.argsort(cell - base, kind="stable")
        self.base, self.cell = base[order], cell[order]
        self.differences = self.cell - self.base
        self.logs = np.stack([np.log(self.base), np.log1p(-self.base), np.log(self.cell), np.log1p(-self.cell)])


@lru_cache(maxsize=1)
def _prior() -> _Prior:
    return _Prior()
