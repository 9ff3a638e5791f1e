"""Many triages at once, with known failure rates, judged by the rules of the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log

import numpy as np
import numpy.typing as npt
from scipy.stats import fisher_exact

from pytest_aorta.triage import MARGIN
from pytest_aorta.triage.e_process import Bets
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.rates import Interval, difference_interval, difference_p, holm
from pytest_aorta.triage.verdicts import LEVEL, Comparison, Method, VerdictKind, verdict_of

Outcomes = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_BASELINE = CellKey("simulated", "local-none")

# Both ends of the 95 % interval are refuted at half the level each.
_REFUTED = log(2 / LEVEL)


def outcomes(generator: np.random.Generator, rates: Sequence[float], triages: int, trials: int) -> Outcomes:
    """Whether each trial fails, of the shape (triages, cells, trials); the first cell is the baseline."""
    return generator.random((triages, len(rates), trials)) < np.array(rates)[None, :, None]


def fixed_verdicts(failed: Outcomes) -> list[list[VerdictKind]]:
    """Of each triage, the verdicts on all cells but the baseline after all of its trials."""
    trials = failed.shape[2]
    return [_fixed(tuple(int(count) for count in counts), trials) for counts in failed.sum(axis=2)]


@cache
def _fixed(failures: tuple[int, ...], trials: int) -> list[VerdictKind]:
    base, *cells = failures
    p_values = [difference_p(count, trials, base, trials) for count in cells]
    intervals = [difference_interval(count, trials, base, trials) for count in cells]
    return _verdicts(cells, base, trials, p_values, intervals, "fixed")


def _verdicts(
    failures: Sequence[int],
    base_failures: int,
    trials: int,
    p_values: Sequence[float],
    intervals: Sequence[Interval],
    method: Method,
) -> list[VerdictKind]:
    """What the package says of cells with equally many trials."""
    kinds: list[VerdictKind] = []
    for count, p, adjusted, interval in zip(failures, p_values, holm(p_values), intervals, strict=True):
        difference = (count - base_failures) / trials
        kinds.append(verdict_of(Comparison(_BASELINE, difference, interval, p, adjusted, method), count, MARGIN))
    return kinds


class Watched:
    """The sequential tests of all cells of many triages, which go on by one trial of every cell at a time."""

    def __init__(self, triages: int, cells: int) -> None:
        self._bets = Bets([0.0, -MARGIN], [0.0, MARGIN])
        self._log_capital = np.zeros((triages, cells, 4))
        self._peaks = np.zeros((triages, cells, 4))
        self.failures = np.zeros((triages, cells + 1), int)
        self.trials = 0

    def add(self, failed: Outcomes) -> None:
        """The next trial of every cell: of the shape (triages, cells), the first of them the baseline."""
        base, cells = failed[:, :1].astype(int), failed[:, 1:].astype(int)
        # Many tests have seen the same: what they bet is computed once.
        seen = self.failures[:, :1] * (self.trials + 1) + self.failures[:, 1:]
        states, which = np.unique(seen, return_inverse=True)
        which = which.reshape(seen.shape)
        before = np.full(len(states), self.trials)
        on_base, on_cell = self._bets.gains(before, states // (self.trials + 1), states % (self.trials + 1))
        self._log_capital += on_base[np.broadcast_to(base, cells.shape), which] + on_cell[cells, which]
        self._peaks = np.maximum(self._peaks, self._log_capital)
        self.failures += failed
        self.trials += 1

    def p_values(self) -> Floats:
        """Of "no difference", of the shape (triages, cells)."""
        peak = np.maximum(self._peaks[:, :, 0], self._peaks[:, :, 2])
        return np.asarray(np.minimum(1, 2 * np.exp(-peak)))

    def verdicts(self, triage: int, p_values: Floats) -> list[VerdictKind]:
        """On the cells of one triage, with these p values."""
        return _verdicts(
            [int(count) for count in self.failures[triage, 1:]],
            int(self.failures[triage, 0]),
            self.trials,
            [float(p) for p in p_values],
            # Of the interval, a verdict asks only whether it lies within the margin.
            [Interval(-MARGIN, MARGIN) if inside else Interval(-1, 1) for inside in self.within_margin(triage)],
            "sequential",
        )

    def within_margin(self, triage: int | None = None) -> Outcomes:
        """Whether the interval of the difference lies within the margin: of the cells of one triage, or of all."""
        peaks = self._peaks if triage is None else self._peaks[triage]
        return np.asarray(np.minimum(peaks[..., 1], peaks[..., 3]) >= _REFUTED)


@dataclass(frozen=True)
class Course:
    """What became of triages that stop a cell when it is decided: (triages, cells) each, without the baseline."""

    verdicts: list[list[VerdictKind]]
    trials: npt.NDArray[np.int64]


def until_decided(failed: Outcomes) -> Course:
    """Look after every trial, and run no more trials of a cell once it has a verdict."""
    triages, cells, most = failed.shape[0], failed.shape[1] - 1, failed.shape[2]
    watched = Watched(triages, cells)
    verdicts: list[list[VerdictKind]] = [["undecided"] * cells for _ in range(triages)]
    p_values = np.ones((triages, cells))
    trials = np.full((triages, cells), most)
    open_cells = np.ones((triages, cells), bool)
    for trial in range(most):
        watched.add(failed[:, :, trial])
        p_values = np.where(open_cells, watched.p_values(), p_values)
        telling = open_cells & ((p_values < LEVEL) | watched.within_margin())
        for triage in np.flatnonzero(telling.any(axis=1)):
            now = watched.verdicts(int(triage), p_values[triage])
            for cell in np.flatnonzero(open_cells[triage]):
                if now[cell] != "undecided":
                    verdicts[triage][cell] = now[cell]
                    trials[triage, cell] = trial + 1
                    open_cells[triage, cell] = False
    return Course(verdicts, trials)


def ever_called(failed: Outcomes) -> list[set[VerdictKind]]:
    """All verdicts on any cell of a triage, looked at after every trial, without ever stopping."""
    triages, cells = failed.shape[0], failed.shape[1] - 1
    watched = Watched(triages, cells)
    seen: list[set[VerdictKind]] = [set() for _ in range(triages)]
    for trial in range(failed.shape[2]):
        watched.add(failed[:, :, trial])
        p_values = watched.p_values()
        for triage in np.flatnonzero((p_values < LEVEL).any(axis=1)):
            seen[triage].update(watched.verdicts(int(triage), p_values[triage]))
    return seen


def lower_rate_anywhere(failed: Outcomes) -> Outcomes:
    """Of each triage, whether any cell failed less often than the baseline."""
    failures = failed.sum(axis=2)
    return np.asarray((failures[:, 1:] < failures[:, :1]).any(axis=1))


def uncorrected_fisher(failed: Outcomes) -> tuple[Outcomes, Outcomes]:
    """Of each triage, whether Fisher's test calls any cell better: at the end, and at any time if one always looks."""
    running = failed.cumsum(axis=2)
    found = np.zeros(failed.shape[0], bool)
    at_the_end = found
    for trial in range(failed.shape[2]):
        trials = trial + 1
        every = range(trials + 1)
        better = np.array([[k < base and _fisher(k, base, trials) < LEVEL for k in every] for base in every])
        at_the_end = better[running[:, :1, trial], running[:, 1:, trial]].any(axis=1)
        found = found | at_the_end
    return at_the_end, found


@cache
def _fisher(failures: int, base_failures: int, trials: int) -> float:
    table = np.array([[failures, base_failures], [trials - failures, trials - base_failures]])
    return float(fisher_exact(table).pvalue)


def pairs_until_different(base: Outcomes, cell: Outcomes) -> npt.NDArray[np.int64]:
    """Pairs until p < 0.05 by the sequential test of the package; of streams of the shape (streams, trials)."""
    failed = np.stack([base, cell], axis=1)
    watched = Watched(len(base), 1)
    p_values = []
    for trial in range(failed.shape[2]):
        watched.add(failed[:, :, trial])
        p_values.append(watched.p_values()[:, 0])
    return _first(np.stack(p_values, axis=1) < LEVEL)


def pairs_until_different_two_sided(base: Outcomes, cell: Outcomes) -> npt.NDArray[np.int64]:
    """The same with the two-sided test of Turner, Ly & Gruenwald, with the prior Beta(0.18, 0.18) of R's safestats."""
    trials = np.arange(base.shape[1])
    base_rate = (np.cumsum(base, axis=1) - base + 0.18) / (trials + 0.36)
    cell_rate = (np.cumsum(cell, axis=1) - cell + 0.18) / (trials + 0.36)
    pooled = (base_rate + cell_rate) / 2
    ratio = np.where(base, base_rate / pooled, (1 - base_rate) / (1 - pooled))
    ratio *= np.where(cell, cell_rate / pooled, (1 - cell_rate) / (1 - pooled))
    return _first(np.cumsum(np.log(ratio), axis=1) > -log(LEVEL))


def _first(hit: Outcomes) -> npt.NDArray[np.int64]:
    """The number of the first trial that is hit, or of the last."""
    return np.asarray(np.where(hit.any(axis=1), hit.argmax(axis=1) + 1, hit.shape[1]))
