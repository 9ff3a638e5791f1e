"""Where on an ordered axis a failure rate changes: a posterior distribution, with both rates unknown.

Each hypothesis is a position from which on another rate holds, or that there is no change; each rate has Jeffreys's
prior, Beta(1/2, 1/2), and is integrated out, so that a group of f failures and p passes has the likelihood
B(f + 1/2, p + 1/2) / B(1/2, 1/2). The next trial is one that is expected to leave the least entropy. So do
``git_bayesect`` (without the hypothesis of no change) and, for deterministic tests, ``git bisect``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import betaln

Numbers = np.ndarray[Any, np.dtype[np.float64]]

#: Beta prior of each rate (Jeffreys).
_PRIOR = 0.5

#: Probability, before any trial, that two positions change the rate, of ``two_changes``.
_TWO = 0.05


def no_change(positions: int) -> float:
    """Probability, before any trial, that nothing changes: 1/5, or that of each change where there are few.

    With 1/2, searches of 8 positions take a fifth more trials; with 1/20, flat rates are named too often.
    """
    return max(0.2, 1 / positions)


class ChangePoint:
    """``positions`` in their order; a change *at* position k means: k is the first one with the other rate.

    Args:
        weights: how likely each position is before any trial, in relation to the others (that of the first counts for
            nothing, as there is nothing before it).
    """

    def __init__(self, positions: int, weights: Sequence[float] | None = None) -> None:
        if positions < 2:
            raise ValueError(f"an axis has at least two positions, not {positions}")
        prior = np.array([0.0, *(weights or [1.0] * positions)[1:]])
        none = no_change(positions)
        self.prior: Numbers = np.append(prior / prior.sum() * (1 - none), none)
        self.failures: Numbers = np.zeros(positions)
        self.trials: Numbers = np.zeros(positions)
        #: Positions at which no trial can run; they are never proposed.
        self.skipped = np.zeros(positions, dtype=bool)

    def learn(self, position: int, failed: float, number: float = 1.0) -> None:
        self.failures[position] += failed
        self.trials[position] += number

    def _groups(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Failures and trials before and after each change; at last those of no change, before it."""
        failures, trials = (np.append(0.0, np.cumsum(each)) for each in (self.failures, self.trials))
        return failures, trials, failures[-1] - failures, trials[-1] - trials

    def distribution(self) -> Numbers:
        """The probability of a change at each position (of the first: 0), and at last of none."""
        failures, trials, later, later_trials = self._groups()
        likelihood = _log_chance(failures, trials) + _log_chance(later, later_trials)
        with np.errstate(divide="ignore"):
            logarithm = np.log(self.prior) + likelihood
        weights = np.exp(logarithm - logarithm.max())
        return np.asarray(weights / weights.sum())

    def expected(self, position: int) -> float:
        """The probability that the next trial at this position fails."""
        failures, trials, later, later_trials = self._groups()
        chance = self.distribution()
        before = (failures + _PRIOR) / (trials + 2 * _PRIOR)
        after = (later + _PRIOR) / (later_trials + 2 * _PRIOR)
        return float((chance * after)[: position + 1].sum() + (chance * before)[position + 1 :].sum())

    def choose(self) -> int:
        """The position of the next trial: the least expected entropy; the ends first."""
        ends = np.flatnonzero(~self.skipped)[[0, -1]]
        for end in ends[::-1]:
            if not self.trials[end]:
                return int(end)
        gain = self._gains()
        gain[self.skipped] = -np.inf
        best = np.flatnonzero(gain >= gain.max() - 1e-12)
        return int(best[len(best) // 2])

    def _gains(self) -> Numbers:
        """By how much a trial at each position is expected to lower the entropy, in nats."""
        chance = self.distribution()
        failures, trials, later, later_trials = self._groups()
        before = (failures + _PRIOR) / (trials + 2 * _PRIOR)
        after = (later + _PRIOR) / (later_trials + 2 * _PRIOR)
        left = np.zeros(len(self.trials))
        for of_before, of_after in ((before, after), (1 - before, 1 - after)):
            # A trial at k has the rate after a change at k or sooner, else the rate before it.
            changed, unchanged = chance * of_after, chance * of_before
            total = np.cumsum(changed)[:-1] + (np.cumsum(unchanged[::-1])[::-1])[1:]
            logs = np.cumsum(_xlogx(changed))[:-1] + (np.cumsum(_xlogx(unchanged)[::-1])[::-1])[1:]
            left += _xlogx(total) - logs
        return np.asarray(-_xlogx(chance).sum() - left)

    def two_changes(self) -> tuple[float, tuple[int, int]]:
        """The probability of two changes beside one and none, and where they are most likely."""
        failures, trials, later, later_trials = self._groups()
        positions = len(self.trials)
        one = self.prior[:positions] / (1 - self.prior[-1])
        first, second = np.triu_indices(positions, 1)
        keep = (one[first] > 0) & (one[second] > 0)
        first, second = first[keep], second[keep]
        if not len(first):
            return 0.0, (0, 0)
        likelihood = (
            _log_chance(failures[first], trials[first])
            + _log_chance(failures[second] - failures[first], trials[second] - trials[first])
            + _log_chance(later[second], later_trials[second])
        )
        weights = np.log(one[first] * one[second])
        weights = likelihood + weights - np.logaddexp.reduce(weights)
        with np.errstate(divide="ignore"):
            single = np.log(self.prior) + _log_chance(failures, trials) + _log_chance(later, later_trials)
        two, fewer = np.logaddexp.reduce(weights) + np.log(_TWO), np.logaddexp.reduce(single) + np.log(1 - _TWO)
        best = int(np.argmax(weights))
        return float(1 / (1 + np.exp(min(700.0, fewer - two)))), (int(first[best]), int(second[best]))


def _log_chance(failures: Numbers, trials: Numbers) -> Numbers:
    return np.asarray(betaln(failures + _PRIOR, trials - failures + _PRIOR) - betaln(_PRIOR, _PRIOR))


def _xlogx(values: Numbers) -> Numbers:
    return np.asarray(np.where(values > 0, values * np.log(np.where(values > 0, values, 1.0)), 0.0))
