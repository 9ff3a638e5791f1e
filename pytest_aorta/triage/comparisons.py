"""Cells against their baseline: difference, interval and p value, once at the end or at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.failures.signatures import Signature
from pytest_aorta.triage.statistics.interval import Interval
from pytest_aorta.triage.statistics.multiplicity import holm
from pytest_aorta.triage.statistics.proportions import difference_interval, difference_p
from pytest_aorta.triage.statistics.sequential import SequentialComparison, SequentialTest, sequential_comparison
from pytest_aorta.triage.verdicts import LEVEL, Comparison, Method

#: Ways to fail that are judged one by one; with more of them, differences by chance become likely.
_SIGNATURES = 5


@dataclass
class _Paired:
    """The test of a cell against a baseline."""

    baseline: CellKey
    test: SequentialTest


@dataclass(frozen=True)
class SignatureComparison:
    """One way to fail: how often in the cell, and against the baseline."""

    signature: Signature
    failures: int
    base_failures: int
    comparison: Comparison


@dataclass
class Comparisons:
    """Compares cells with baselines; keeps what it has computed of trials that were there the last time."""

    margin: float
    _paired: dict[CellKey, _Paired] = field(default_factory=dict)

    def of_family(
        self,
        family: Sequence[CellKey],
        baseline: CellKey,
        cells: Mapping[CellKey, CellTrials],
        method: Method,
        planned: int = 0,
    ) -> list[Comparison]:
        """The comparison of each cell with their common baseline, corrected for their number (Holm).

        While trials run, for the number that is ``planned``: a cell that has its first trials later must not take back
        what was concluded before.
        """
        base = cells[baseline].statistics
        found: list[tuple[float, Interval, float]] = []
        for key in family:
            cell = cells[key].statistics
            difference = (cell.rate or 0.0) - (base.rate or 0.0)
            if method == "fixed":
                numbers = (cell.failures, cell.counted, base.failures, base.counted)
                found.append((difference, difference_interval(*numbers), difference_p(*numbers)))
            else:
                sequential = self.sequential(cells[key], cells[baseline])
                found.append((difference, sequential.interval, sequential.p))
        return _adjusted(found, baseline, method, planned if method == "sequential" else 0)

    def sequential(self, cell: CellTrials, baseline: CellTrials) -> SequentialComparison:
        """A cell against a baseline by now, alone."""
        return self._test_of(cell, baseline).comparison()

    def by_signature(
        self, family: Sequence[CellKey], baseline: CellKey, cells: Mapping[CellKey, CellTrials], method: Method
    ) -> dict[CellKey, list[SignatureComparison]]:
        """For cells that have, together with their baseline, failed in several ways: the comparison of each way.

        Corrected for the number of cells and ways together.
        """
        base = cells[baseline]
        asked: list[tuple[CellKey, Signature, int, int]] = []
        found: list[tuple[float, Interval, float]] = []
        for key in family:
            ours, theirs = _counts(cells[key]), _counts(base)
            signatures = sorted({**theirs, **ours}, key=lambda each: -(ours.get(each, 0) + theirs.get(each, 0)))
            if len(signatures) < 2:
                continue
            for signature in signatures[:_SIGNATURES]:
                numbers = (ours.get(signature, 0), cells[key].statistics.counted)
                base_numbers = (theirs.get(signature, 0), base.statistics.counted)
                asked.append((key, signature, numbers[0], base_numbers[0]))
                difference = numbers[0] / numbers[1] - base_numbers[0] / base_numbers[1]
                if method == "fixed":
                    interval, p = difference_interval(*numbers, *base_numbers), difference_p(*numbers, *base_numbers)
                else:
                    other, own = ([one.signature == signature for one in side.stream()] for side in (base, cells[key]))
                    sequential = sequential_comparison(other, own, self.margin, 1 - LEVEL)
                    interval, p = sequential.interval, sequential.p
                found.append((difference, interval, p))
        by_cell: dict[CellKey, list[SignatureComparison]] = {}
        for (key, signature, failures, base_failures), comparison in zip(
            asked, _adjusted(found, baseline, method), strict=True
        ):
            by_cell.setdefault(key, []).append(SignatureComparison(signature, failures, base_failures, comparison))
        return by_cell

    def _test_of(self, cell: CellTrials, baseline: CellTrials) -> SequentialTest:
        """The sequential test of a cell, with all pairs of trials that are complete by now."""
        paired = self._paired.get(cell.key)
        if paired is None or paired.baseline != baseline.key:
            paired = self._paired[cell.key] = _Paired(baseline.key, SequentialTest(self.margin, 1 - LEVEL))
        new = list(zip(baseline.stream(), cell.stream(), strict=False))[paired.test.pairs :]
        paired.test.extend([base.is_failure for base, _ in new], [other.is_failure for _, other in new])
        return paired.test


def _adjusted(
    found: Sequence[tuple[float, Interval, float]], baseline: CellKey, method: Method, planned: int = 0
) -> list[Comparison]:
    adjusted = holm([*(p for _, _, p in found), *[1.0] * (planned - len(found))])[: len(found)]
    return [
        Comparison(baseline, difference, interval, p, p_adjusted, method)
        for (difference, interval, p), p_adjusted in zip(found, adjusted, strict=True)
    ]


def _counts(cell: CellTrials) -> dict[Signature, int]:
    return {each.signature: len(each.trials) for each in cell.statistics.signatures}
