"""Operators that take another time in a cell than in its baseline: what is slower where steps are slower."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, log
from statistics import fmean

from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.rates import Interval
from pytest_aorta.triage.speed import LEVEL, compare_speeds

#: Operators that take less than this part of both sides' operators are not compared: each one costs certainty.
_LEAST_SHARE = 0.01

#: They last as long as the slowest rank makes them last.
_WAITS = re.compile(r"c10d::|gloo:|nccl:|rccl:|mpi:|ucc:")


@dataclass(frozen=True)
class OperatorChange:
    """An operator whose time differs.

    Attributes:
        name: as torch's profiler calls it; `` (device)`` behind it for the time of its kernels.
        ms: per step, its own time without that of the operators it calls; mean over the trials of the cell.
        base_ms: of the baseline.
        interval: 95 %, of the ratio of both; ``None`` for an operator that only one of them has.
        p_adjusted: of "no difference", corrected for the number of operators and cells (Holm).
    """

    name: str
    ms: float
    base_ms: float
    interval: Interval | None
    p_adjusted: float

    @property
    def waits(self) -> bool:
        """Whether it may only wait for other ranks."""
        return _WAITS.match(self.name) is not None

    @property
    def text(self) -> str:
        """``aten::mm +31% (25 to 36%), 12.1 ms a step instead of 9.2``."""
        waits = ", which may wait for other ranks" if self.waits else ""
        if self.interval is None:
            where = "only here" if self.ms else "only in the baseline"
            return f"{self.name} {where}, {max(self.ms, self.base_ms):.3g} ms a step{waits}"
        low, high = (each - 1 for each in (self.interval.low, self.interval.high))
        change = f"{self.ms / self.base_ms - 1:+.0%} ({100 * low:.0f} to {high:.0%})"
        return f"{self.name} {change}, {self.ms:.3g} ms a step instead of {self.base_ms:.3g}{waits}"


def changed_operators(
    cell: Sequence[TrialFacts], base: Sequence[TrialFacts], margin: float, cells: int
) -> tuple[OperatorChange, ...]:
    """The operators that differ, what costs most first; those that may only wait come last.

    The trial is the unit, as for steps; with probability 5 % any operator is named in any of ``cells`` cells where none
    differs.

    Args:
        cell: its trials, of which those with a profile count.
        base: those of the baseline.
        margin: ratios up to ``1 + margin``, and from ``1 / (1 + margin)``, are no difference.
        cells: compared with the same baseline.
    """
    ours, theirs = ([trial for trial in side if trial.operators] for side in (cell, base))
    if len(ours) < 2 or len(theirs) < 2:
        return ()
    names = {name for trial in (*ours, *theirs) for name in trial.operators}
    means = {name: (_mean(ours, name), _mean(theirs, name)) for name in names}
    total = sum(sum(both) for both in means.values())
    names = {name for name in names if sum(means[name]) >= _LEAST_SHARE * total}
    shared = sorted(name for name in names if all(name in trial.operators for trial in (*ours, *theirs)))
    sides = [(_measured(ours, name), _measured(theirs, name)) for name in shared]
    speeds = compare_speeds(sides, margin, sequential=False, family=len(names) * cells)
    found = [
        OperatorChange(name, *means[name], speed.interval, speed.p_adjusted)
        for name, speed in zip(shared, speeds, strict=True)
        if speed.kind in ("slower", "faster")
    ]
    # Which trials have it says as much as a permutation can.
    p = len(names) * cells / comb(len(ours) + len(theirs), len(ours))
    if p < LEVEL:
        for name in sorted(names.difference(shared)):
            have = [[name in trial.operators for trial in side] for side in (ours, theirs)]
            if (all(have[0]) and not any(have[1])) or (all(have[1]) and not any(have[0])):
                found.append(OperatorChange(name, *means[name], None, p))
    return tuple(sorted(found, key=lambda each: (each.waits, -abs(each.ms - each.base_ms))))


def _mean(trials: Sequence[TrialFacts], name: str) -> float:
    return fmean(trial.operators.get(name, 0.0) for trial in trials)


def _measured(trials: Sequence[TrialFacts], name: str) -> list[tuple[object, float]]:
    return [(trial.place.key, log(trial.operators[name])) for trial in trials]
