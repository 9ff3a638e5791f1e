"""The verdict on a cell: what its mitigation does to the failure rate, compared with the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.statistics.interval import Interval

VerdictKind = Literal[
    "baseline",
    "second baseline",
    "fixes",
    "reduces",
    "worse",
    "no effect",
    "undecided",
    "did not run",
    "error",
]

#: Verdicts that more trials would not change.
DECIDED: frozenset[VerdictKind] = frozenset({"second baseline", "fixes", "reduces", "worse", "no effect"})

#: Probability that any cell of a baseline is called different although none is.
LEVEL = 0.05

#: How the numbers were found: once, after a number of trials that was set before; or such that one may look any time.
Method = Literal["fixed", "sequential"]


@dataclass(frozen=True)
class Comparison:
    """A cell against its baseline.

    Attributes:
        baseline: the cell that it is compared with.
        difference: failure rate minus that of the baseline.
        interval: of the difference, 95 %.
        p: two-sided, of this cell alone.
        p_adjusted: after Holm's correction over all cells of the baseline.
        method: of interval and p.
    """

    baseline: CellKey
    difference: float
    interval: Interval
    p: float
    p_adjusted: float
    method: Method


@dataclass(frozen=True)
class Verdict:
    """What is concluded about a cell.

    Attributes:
        kind: in a word or two.
        reason: why there is no more to say; empty where the numbers say it.
        more_trials: about how many more trials of the cell would decide; ``None`` for not known.
        rate_below: of ``fixes``: the failure rate is below this, 95 %.
    """

    kind: VerdictKind
    reason: str = ""
    more_trials: int | None = None
    rate_below: float | None = None

    @property
    def text(self) -> str:
        """For a table: ``undecided (about 12 more trials)``."""
        if self.kind == "undecided" and self.more_trials is not None:
            return f"undecided (about {self.more_trials} more trials)"
        if self.kind == "fixes" and self.rate_below is not None:
            return f"fixes (rate below {self.rate_below:.1%})"
        return self.kind

    @property
    def is_decided(self) -> bool:
        """Whether more trials would not change it."""
        return self.kind in DECIDED


def verdict_of(comparison: Comparison, failures: int, margin: float) -> VerdictKind:
    """What a comparison says of a cell with so many ``failures``.

    Significantly different comes first: then the sign of the difference decides, and whether any failure was seen.
    ``no effect`` is shown, not assumed: the whole interval of the difference lies within ``margin``.
    """
    if comparison.p_adjusted < LEVEL and comparison.difference < 0:
        return "reduces" if failures else "fixes"
    if comparison.p_adjusted < LEVEL and comparison.difference > 0:
        return "worse"
    return "no effect" if comparison.interval.within(-margin, margin) else "undecided"
