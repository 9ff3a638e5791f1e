"""One of two runs that are compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_aorta.settings import RequestError
from pytest_aorta.triage.cells import CellStatistics, SignatureCount
from pytest_aorta.triage.environments import Difference, Environments, differences
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.rates import Interval, difference_interval, difference_p, holm, more_trials, step_time_ratio
from pytest_aorta.triage.reading import Results, triage_in_order
from pytest_aorta.triage.verdicts import LEVEL, MARGIN, SLOWER
from pytest_aorta.workspace.paths import HISTORY


@dataclass(frozen=True)
class Side:
    """One of the two runs.

    Attributes:
        results: where it was read from.
        cells: in order, with the statistics of each.
        environments: of the trials of each cell.
        hosts: names, in order.
        began, ended: when the first trial and the last one began, ISO 8601 in UTC; empty where no record says it.
    """

    results: Results
    cells: dict[CellKey, CellStatistics]
    environments: dict[CellKey, Environments]
    hosts: tuple[str, ...]
    began: str
    ended: str

    @property
    def trials(self) -> int:
        """How many were read."""
        return sum(cell.total for cell in self.cells.values())


def read_side(path: Path) -> Side:
    """Read one of two runs.

    Raises:
        RequestError: it does not exist, or has no trials.
    """
    results = Results(path)
    environments: dict[CellKey, Environments] = {}
    facts = []
    for trial in results:
        facts.append(trial.facts)
        environments.setdefault(trial.facts.key, Environments()).add(trial.record)
    if not facts:
        raise results.nothing_found()
    times = sorted(each.started_at for each in facts if each.started_at)
    return Side(
        results=results,
        cells={cell.key: cell.statistics for cell in triage_in_order(facts).cells},
        environments=environments,
        hosts=tuple(sorted({each.host.name for each in facts if each.host.name})),
        began=times[0] if times else "",
        ended=times[-1] if times else "",
    )


def label(key: CellKey) -> str:
    """A cell in words: test, workload, cell and options, as far as it has them."""
    return " ".join(part for part in (key.test, key.workload, key.cell, key.options) if part)


#: What cells are matched by: the first that tells them apart. A digest has places on the disk in it.
_EXACTLY: tuple[Callable[[CellStatistics], Hashable], ...] = (
    lambda cell: cell.key,
    lambda cell: (cell.key.workload, cell.key.cell, cell.key.test, cell.key.options),
)


def match_cells(a: Side, b: Side) -> tuple[list[tuple[CellKey, CellKey]], bool]:
    """Pairs of cells, in the order of B, and whether their environments have other names.

    Raises:
        RequestError: there is none.
    """
    partner: dict[CellKey, CellKey] = {}
    for identity in _EXACTLY:
        _match(a, b, identity, partner)
    across = False
    if not partner and all(len({cell.environment for cell in side.cells.values()}) == 1 for side in (a, b)):
        _match(a, b, lambda cell: (cell.key.workload, cell.mitigations, cell.key.test, cell.key.options), partner)
        across = True
    if not partner:
        raise RequestError(_nothing_in_common(a, b))
    return [(partner[key], key) for key in b.cells if key in partner], across


def _match(a: Side, b: Side, identity: Callable[[CellStatistics], Hashable], partner: dict[CellKey, CellKey]) -> None:
    """Match what is not matched yet; several cells that are alike are matched in their order."""
    free: dict[Hashable, list[CellKey]] = {}
    taken = set(partner.values())
    for key, cell in a.cells.items():
        if key not in taken:
            free.setdefault(identity(cell), []).append(key)
    for key, cell in b.cells.items():
        if key not in partner and (candidates := free.get(identity(cell))):
            partner[key] = candidates.pop(0)


def _nothing_in_common(a: Side, b: Side) -> str:
    """What each run has, and which of it the other has not."""
    aspects: dict[str, Callable[[CellStatistics], str]] = {
        "workload": lambda cell: cell.key.workload,
        "test": lambda cell: cell.key.test,
        "environment": lambda cell: cell.environment,
        "mitigation set": lambda cell: "+".join(cell.mitigations),
    }
    reason = "no combination of workload, environment, mitigations and options is the same"
    for name, of in aspects.items():
        ours, theirs = ({of(cell) for cell in side.cells.values()} for side in (a, b))
        if ours.isdisjoint(theirs):
            reason = f"no {name} is the same ({_few(ours)} in A, {_few(theirs)} in B)"
            break
    lists = " and ".join(f"{side} has {_few([label(key) for key in run.cells])}" for side, run in (("A", a), ("B", b)))
    return f"A ({a.results.path}) and B ({b.results.path}) have no cell in common: {reason}. {lists}"


def _few(names: Sequence[str] | set[str]) -> str:
    listed = sorted(names) if isinstance(names, set) else list(names)
    shown = ", ".join(name or "none" for name in listed[:4])
    return f"{shown} and {len(listed) - 4} more" if len(listed) > 4 else shown


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
    if found.interval.low > SLOWER:
        kind = "slower"
    elif found.interval.high < 1 / SLOWER:
        kind = "faster"
    elif found.interval.within(1 / SLOWER, SLOWER):
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
