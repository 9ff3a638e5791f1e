"""Two runs, or the same run on two machines: which cells have changed, and what differs around them."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_aorta.settings import RequestError
from pytest_aorta.triage.cells import CellStatistics, SignatureCount
from pytest_aorta.triage.checks.confounds import THRESHOLD
from pytest_aorta.triage.compare.differences import Difference, differences
from pytest_aorta.triage.compare.environments import Environments
from pytest_aorta.triage.compare.matching import label, match_cells
from pytest_aorta.triage.compare.sides import Side, read_side
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.settings import MARGIN
from pytest_aorta.triage.statistics.interval import Interval
from pytest_aorta.triage.statistics.multiplicity import holm
from pytest_aorta.triage.statistics.proportions import difference_interval, difference_p
from pytest_aorta.triage.statistics.sample_size import more_trials
from pytest_aorta.triage.statistics.step_ratio import step_time_ratio
from pytest_aorta.triage.verdicts import LEVEL
from pytest_aorta.workspace.paths import HISTORY

#: ``no change`` is shown, not assumed: the whole interval of the difference lies within the margin.
ChangeKind = Literal["worse", "better", "no change", "undecided", "not compared"]

#: ``similar`` where the whole interval of the ratio lies within the threshold; ``n/a`` without step times of two trials
#: on both sides.
SpeedKind = Literal["slower", "faster", "similar", "undecided", "n/a"]


@dataclass(frozen=True)
class RateChange:
    """The failure rate of a cell in B, less that in A.

    Attributes:
        difference, interval: 95 %.
        p: two-sided, of this cell alone.
        p_adjusted: after Holm's correction over all cells compared.
    """

    difference: float
    interval: Interval
    p: float
    p_adjusted: float


@dataclass(frozen=True)
class SpeedChange:
    """Step times in B as a multiple of those in A, with their 95 % interval; ``None`` where ``kind`` is ``n/a``."""

    kind: SpeedKind
    ratio: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True)
class CellChange:
    """A cell that both runs have.

    Attributes:
        a, b: its statistics.
        kind: what became of its failure rate.
        more_trials: of ``undecided``: about how many more trials of each run would decide; ``None`` for not known.
        rate: the numbers; ``None`` for ``not compared``, where no trial of one run says anything about the workload.
        speed: what became of its step times.
        new_signatures, gone_signatures: ways to fail that only B, or only A, has.
    """

    a: CellStatistics
    b: CellStatistics
    kind: ChangeKind
    more_trials: int | None
    rate: RateChange | None
    speed: SpeedChange
    new_signatures: tuple[SignatureCount, ...]
    gone_signatures: tuple[SignatureCount, ...]

    @property
    def label(self) -> str:
        """Of the cell, as the table names it."""
        return label(self.b.key) if self.a.key.cell == self.b.key.cell else f"{label(self.a.key)} -> {self.b.key.cell}"


@dataclass(frozen=True)
class ParticularDifferences:
    """What differs in the environment of some cells only: their labels, and what."""

    cells: tuple[str, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class RunComparison:
    """Two runs compared.

    Attributes:
        a, b: the runs.
        cells: that both have, in the order of B.
        only_a, only_b: cells that only one has.
        matched_across_environments: whether cells were matched by their mitigations alone, because the names of the
            environments are not the same.
        shared: what differs in the environment of all cells, the most important first.
        particular: what differs in some cells only.
    """

    a: Side
    b: Side
    cells: tuple[CellChange, ...]
    only_a: tuple[CellStatistics, ...]
    only_b: tuple[CellStatistics, ...]
    matched_across_environments: bool
    shared: tuple[Difference, ...]
    particular: tuple[ParticularDifferences, ...]


def compare_runs(a: Path, b: Path, margin: float = MARGIN) -> RunComparison:
    """Compare two results directories, or parts of them.

    Args:
        a: what was before, or the machine that is known.
        b: what is new.
        margin: differences of the failure rate that are no change.

    Raises:
        RequestError: one does not exist, or has no trials; both are the same; they have no cell in common.
    """
    one, two = (Path(os.path.realpath(path)) for path in (a, b))  # which raises for no path, as resolve() does
    if one == two:
        raise RequestError(f"{a} and {b} are the same; expected two results directories")
    for outer, inner in ((one, two), (two, one)):
        if inner.is_relative_to(outer) and HISTORY not in inner.relative_to(outer).parts:
            raise RequestError(f"{inner} lies in {outer}, so it has the same trials; expected two results directories")
    return compare(read_side(a), read_side(b), margin)


def compare(a: Side, b: Side, margin: float = MARGIN) -> RunComparison:
    """Compare two runs.

    Raises:
        RequestError: they have no cell in common.
    """
    pairs, across = match_cells(a, b)
    numbers = [(b.cells[two], a.cells[one]) for one, two in pairs]
    p_values = {
        two.key: difference_p(two.failures, two.counted, one.failures, one.counted)
        for two, one in numbers
        if two.counted and one.counted
    }
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    changes = tuple(
        _change(one, two, margin, p_values.get(two.key), adjusted.get(two.key), len(p_values)) for two, one in numbers
    )
    matched_a, matched_b = {one for one, _ in pairs}, {two for _, two in pairs}
    shared, particular = _environment(a, b, pairs, [change.label for change in changes])
    return RunComparison(
        a=a,
        b=b,
        cells=changes,
        only_a=tuple(cell for key, cell in a.cells.items() if key not in matched_a),
        only_b=tuple(cell for key, cell in b.cells.items() if key not in matched_b),
        matched_across_environments=across,
        shared=shared,
        particular=particular,
    )


def _change(
    a: CellStatistics, b: CellStatistics, margin: float, p: float | None, p_adjusted: float | None, comparisons: int
) -> CellChange:
    numbers = (b.failures, b.counted, a.failures, a.counted)
    kind: ChangeKind = "not compared"
    rate, more = None, None
    if p is not None and p_adjusted is not None:
        difference = b.failures / b.counted - a.failures / a.counted
        rate = RateChange(difference, difference_interval(*numbers), p, p_adjusted)
        if p_adjusted < LEVEL:
            kind = "worse" if difference > 0 else "better"
        elif rate.interval.within(-margin, margin):
            kind = "no change"
        else:
            kind, more = "undecided", more_trials(*numbers, margin=margin, comparisons=comparisons)
    before, after = ({each.signature for each in cell.signatures} for cell in (a, b))
    return CellChange(
        a=a,
        b=b,
        kind=kind,
        more_trials=more,
        rate=rate,
        speed=_speed(a, b),
        new_signatures=tuple(each for each in b.signatures if each.signature not in before),
        gone_signatures=tuple(each for each in a.signatures if each.signature not in after),
    )


def _speed(a: CellStatistics, b: CellStatistics) -> SpeedChange:
    if a.steps is None or b.steps is None:
        return SpeedChange("n/a")
    found = step_time_ratio(b.steps.trial_medians_ms, a.steps.trial_medians_ms)
    if found is None:
        return SpeedChange("n/a")
    kind: SpeedKind = "undecided"
    if found.interval.low > THRESHOLD:
        kind = "slower"
    elif found.interval.high < 1 / THRESHOLD:
        kind = "faster"
    elif found.interval.within(1 / THRESHOLD, THRESHOLD):
        kind = "similar"
    return SpeedChange(kind, found.ratio, found.interval)


def _environment(
    a: Side, b: Side, pairs: Sequence[tuple[CellKey, CellKey]], labels: Sequence[str]
) -> tuple[tuple[Difference, ...], tuple[ParticularDifferences, ...]]:
    """What differs around all cells, and around some of them."""
    installed = (a.results.installed, b.results.installed)
    found: dict[Hashable, tuple[Difference, list[str]]] = {}
    before, after = Environments(), Environments()
    for (one, two), cell in zip(pairs, labels, strict=True):
        before.update(a.environments[one])
        after.update(b.environments[two])
        for difference in differences(a.environments[one], b.environments[two], installed):
            found.setdefault(difference.key, (difference, []))[1].append(cell)
    everywhere = {difference for difference, cells in found.values() if len(cells) == len(pairs)}
    names = {difference.fact for difference in everywhere}
    # Said once, with the numbers of all trials.
    shared = tuple(each for each in differences(before, after, installed) if each.fact in names)
    by_cells: dict[tuple[str, ...], list[Difference]] = {}
    for difference, cells in sorted(found.values(), key=lambda item: item[0].fact):
        if difference not in everywhere:
            by_cells.setdefault(tuple(cells), []).append(difference)
    return shared, tuple(ParticularDifferences(cells, tuple(each)) for cells, each in by_cells.items())
