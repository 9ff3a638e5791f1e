"""Compare two runs, or one run on two machines: changed cells, and differences of their environments."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pytest_aorta.common.texts import first_names
from pytest_aorta.settings import RequestError
from pytest_aorta.triage import MARGIN, SPEED_MARGIN, Margin
from pytest_aorta.triage.cells import CellStatistics, SignatureCount
from pytest_aorta.triage.columns import Column, difference_with_interval, json_data, p_value
from pytest_aorta.triage.draws import StartComparison
from pytest_aorta.triage.environments import Difference, Environments, differences
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.health import changes_of_clocks
from pytest_aorta.triage.judging import LEVEL, Comparison, Pair, VerdictKind, judge
from pytest_aorta.triage.rates import difference_p, holm
from pytest_aorta.triage.reading import Results, triage_in_order
from pytest_aorta.triage.speed import Measured, Speed, compare_speeds
from pytest_aorta.triage.verdicts import WAYS
from pytest_aorta.workspace.paths import HISTORY

#: ``no change`` has to be shown: the whole interval of the difference is within the margin. ``other failures``: neither
#: worse nor better, but the frequency of a way to fail has changed.
ChangeKind = Literal["worse", "better", "other failures", "no change", "undecided", "not compared"]

#: With fewer cells, a common change of speed cannot be told from a change of one cell.
_FEWEST_CELLS = 3

#: One in so many cells may be an exception from a common change of speed.
_EXCEPTIONS = 4

#: Version of the JSON data: later versions 1.x have all keys of version 1.
SCHEMA_VERSION = "1.2"

_CHANGES: dict[VerdictKind, ChangeKind] = {
    "fixes": "better",
    "reduces": "better",
    "worse": "worse",
    "undecided": "undecided",
    "no cure": "undecided",
}


@dataclass(frozen=True)
class Side:
    """One of the two runs; ``times``: when its trials began, ascending."""

    results: Results
    cells: dict[CellKey, CellStatistics]
    environments: dict[CellKey, Environments]
    hosts: tuple[str, ...]
    times: tuple[str, ...]
    facts: tuple[TrialFacts, ...] = ()

    @property
    def trials(self) -> int:
        return sum(cell.total for cell in self.cells.values())


@dataclass(frozen=True)
class WayChange:
    """A way to fail whose frequency differs: ``before`` and ``after`` are ``failures/trials`` in A and in B."""

    text: str
    before: str
    after: str
    p_adjusted: float


@dataclass(frozen=True)
class CommonFactor:
    """A change of step times that all cells have in common, as on a slower machine: the median over the cells."""

    ratio: float
    cells: int

    @property
    def sentence(self) -> str:
        how = "longer" if self.ratio > 1 else "shorter"
        return f"steps take {abs(self.ratio - 1):.1%} {how} in B in all {self.cells} cells; each is judged beside that"


@dataclass(frozen=True)
class CellChange:
    """A cell of both runs, with the changes of its failure rate and step times from A to B.

    ``rate`` is ``None`` if a run has no counted trial of it. ``changed_ways``: ways to fail whose frequencies differ
    (Holm, over cells and ways).
    """

    a: CellStatistics
    b: CellStatistics
    kind: ChangeKind
    more_trials: int | None
    rate: Comparison | None
    speed: Speed
    changed_ways: tuple[WayChange, ...] = ()

    @property
    def new_signatures(self) -> tuple[SignatureCount, ...]:
        """Ways to fail that only B has."""
        return tuple(each for each in self.b.signatures if each.signature not in self.a.signature_numbers)

    @property
    def gone_signatures(self) -> tuple[SignatureCount, ...]:
        """Ways to fail that only A has."""
        return tuple(each for each in self.a.signatures if each.signature not in self.b.signature_numbers)

    @property
    def label(self) -> str:
        """The cell's name in the table."""
        return self.b.key.label if self.a.key.cell == self.b.key.cell else f"{self.a.key.label} -> {self.b.key.cell}"

    @property
    def verdict(self) -> str:
        """The verdict as in the table."""
        text = f"undecided, ~{self.more_trials} more" if self.more_trials is not None else self.kind
        return f"{text}, {self.speed.kind}" if self.speed.kind in ("slower", "faster") else text


@dataclass(frozen=True)
class RunComparison:
    """Two runs compared.

    Attributes:
        cells: cells of both, in the order of B.
        only_a, only_b: cells of one run only.
        matched_across_environments: cells were matched by their mitigations alone, as environments have other names.
        shared: differences of the environments of all cells, the most important first.
        particular: labels of cells with differences of their environments only.
        factor: common change of step times, which the speed of each cell is compared with; ``None`` for none.
        clocks: sentences on what has held clocks back in one run more than in the other.
    """

    a: Side
    b: Side
    margin: Margin
    cells: tuple[CellChange, ...]
    only_a: tuple[CellStatistics, ...]
    only_b: tuple[CellStatistics, ...]
    matched_across_environments: bool
    shared: tuple[Difference, ...]
    particular: tuple[tuple[tuple[str, ...], tuple[Difference, ...]], ...]
    factor: CommonFactor | None = None
    clocks: tuple[str, ...] = ()


def _fields(value: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _ways(signatures: Sequence[SignatureCount]) -> list[dict[str, Any]]:
    return [{"text": each.signature.text, "count": len(each.trials)} for each in signatures]


def _failures(cell: CellStatistics) -> str:
    return f"{cell.failures}/{cell.counted}" if cell.counted else "-"


#: Facts about each cell of both runs; columns with a title are shown to people.
COLUMNS: tuple[Column[CellChange], ...] = (
    Column("label", lambda change: change.label),
    Column("workload", lambda change: change.b.key.workload),
    Column("cell", lambda change: change.b.key.cell),
    Column("cell_in_a", lambda change: change.a.key.cell),
    Column("test", lambda change: change.b.key.test or None),
    Column("options", lambda change: change.b.key.options or None),
    Column("a", lambda change: _numbers(change.a), "A", lambda change: _failures(change.a)),
    Column("b", lambda change: _numbers(change.b), "B", lambda change: _failures(change.b)),
    Column("failure_rate",
           lambda change: change.rate and _fields(change.rate, "difference", "interval", "p", "p_adjusted"),
           "change (95%)",
           lambda change: difference_with_interval(change.rate.difference, change.rate.interval)
           if change.rate else ""),
    Column("", lambda change: change.rate and change.rate.p_adjusted, "p",
           lambda change: p_value(change.rate.p_adjusted) if change.rate else ""),
    Column("speed",
           lambda change: {"verdict": change.speed.kind, **_fields(change.speed, "ratio", "interval", "p_adjusted")},
           "steps", lambda change: change.speed.change),
    Column("verdict", lambda change: change.kind, "verdict", lambda change: change.verdict),
    Column("more_trials", lambda change: change.more_trials),
    Column("changed_ways", lambda change: change.changed_ways),
    Column("new_signatures", lambda change: _ways(change.new_signatures)),
    Column("gone_signatures", lambda change: _ways(change.gone_signatures)),
)  # fmt: skip


def compare_runs(a: Path, b: Path, margin: Margin = MARGIN, speed_margin: float = SPEED_MARGIN) -> RunComparison:
    """Compare two results directories, or parts of them; ``a`` is the earlier run, or the reference machine.

    Raises:
        RequestError: one does not exist or has no trials; both are the same; they have no cell in common.
    """
    paths = [Path(os.path.realpath(path)) for path in (a, b)]  # resolve() raises for impossible paths
    if paths[0] == paths[1]:
        raise RequestError(f"{a} and {b} are the same; expected two results directories")
    for outer, inner in (paths, paths[::-1]):
        if inner.is_relative_to(outer) and HISTORY not in inner.relative_to(outer).parts:
            raise RequestError(f"{inner} lies in {outer}, so it has the same trials; expected two results directories")
    _, rules = Results(a), Results(b).rules
    before, after = read_side(a, rules), read_side(b, rules)
    partner, across = _match_cells(before, after)
    cells = [(before.cells[one], after.cells[two]) for two, one in partner.items()]
    counts = {
        two.key: (two.failures, two.counted, one.failures, one.counted)
        for one, two in cells
        if one.counted and two.counted
    }
    starts = {
        two.key: StartComparison(two.starts, one.starts) for one, two in cells if one.shared_starts or two.shared_starts
    }
    pairs = [Pair(partner[key], each, (each,), starts=starts.get(key)) for key, each in counts.items()]
    judged = dict(zip(counts, judge(pairs, margin, len(pairs)), strict=True))
    # Ignore places: the other run may have been on another machine.
    times: list[tuple[list[Measured], list[Measured]]] = [(_times(two), _times(one)) for one, two in cells]
    speeds = compare_speeds(times, speed_margin, sequential=False, family=len(cells))
    factor = _common_factor(speeds)
    if factor is not None:
        shift = math.log(factor.ratio)
        times = [([each._replace(time=each.time - shift) for each in after], before) for after, before in times]
        speeds = compare_speeds(times, speed_margin, sequential=False, family=len(cells))
    ways = _changed_ways([(one, two) for one, two in cells if two.key in counts])
    changes = []
    for (one, two), speed in zip(cells, speeds, strict=True):
        rate, verdict = judged.get(two.key, (None, None))
        kind: ChangeKind = "not compared"
        if verdict is not None:
            kind = "no change" if verdict.is_same else _CHANGES[verdict.kind]
        changed = tuple(way for way in ways.get(two.key, ()) if way.p_adjusted < LEVEL)
        if changed and kind in ("undecided", "no change"):
            kind = "other failures"
        more = None if verdict is None or kind != "undecided" else verdict.more_trials
        changes.append(CellChange(one, two, kind, more, rate, speed, changed))
    # Differences of all cells are reported once, with the numbers of all trials.
    labelled: dict[Hashable, tuple[Difference, list[str]]] = {}
    was, now = Environments(), Environments()
    for change in changes:
        one_cell, other_cell = before.environments[change.a.key], after.environments[change.b.key]
        was.update(one_cell)
        now.update(other_cell)
        for difference in differences(one_cell, other_cell):
            labelled.setdefault(difference.key, (difference, []))[1].append(change.label)
    everywhere = {difference.fact for difference, labels in labelled.values() if len(labels) == len(changes)}
    by_cells: dict[tuple[str, ...], list[Difference]] = {}
    for difference, labels in sorted(labelled.values(), key=lambda item: item[0].fact):
        if len(labels) < len(changes):
            by_cells.setdefault(tuple(labels), []).append(difference)
    return RunComparison(
        a=before,
        b=after,
        margin=margin,
        cells=tuple(changes),
        only_a=tuple(cell for key, cell in before.cells.items() if key not in partner.values()),
        only_b=tuple(cell for key, cell in after.cells.items() if key not in partner),
        matched_across_environments=across,
        shared=tuple(each for each in differences(was, now) if each.fact in everywhere),
        particular=tuple((labels, tuple(each)) for labels, each in by_cells.items()),
        factor=factor,
        clocks=changes_of_clocks(before.facts, after.facts),
    )


def _common_factor(speeds: Sequence[Speed]) -> CommonFactor | None:
    """The change of speed that all cells have in common, with at most one exception in four."""
    known = [(speed.ratio, speed.interval) for speed in speeds if speed.ratio and speed.interval]
    if len(known) < _FEWEST_CELLS:
        return None
    ratio = statistics.median(ratio for ratio, _ in known)
    alike = sum(interval.low > 1 if ratio > 1 else interval.high < 1 for _, interval in known)
    return CommonFactor(ratio, len(known)) if alike >= len(known) - len(known) // _EXCEPTIONS else None


def _changed_ways(cells: Sequence[tuple[CellStatistics, CellStatistics]]) -> dict[CellKey, list[WayChange]]:
    """The most frequent ways to fail of cells that have several, with their numbers in A and in B."""
    changes: dict[CellKey, list[WayChange]] = {}
    asked: list[tuple[CellKey, WayChange]] = []
    for one, two in cells:
        before, after = one.signature_numbers, two.signature_numbers
        both = sorted({*before, *after}, key=lambda way: -(before.get(way, 0) + after.get(way, 0)))
        for way in both[:WAYS] if len(both) > 1 else ():
            was, now = (before.get(way, 0), one.counted), (after.get(way, 0), two.counted)
            asked.append((two.key, WayChange(way.short, "{}/{}".format(*was), "{}/{}".format(*now),
                                             difference_p(*now, *was))))  # fmt: skip
    for (key, change), p in zip(asked, holm([change.p_adjusted for _, change in asked]), strict=True):
        changes.setdefault(key, []).append(replace(change, p_adjusted=p))
    return changes


def read_side(path: Path, rules: Sequence[tuple[str, str]] | None = None) -> Side:
    """Read one of two runs; ``rules`` for signatures by default as in the run.

    Raises:
        RequestError: it does not exist or has no trials.
    """
    results = Results(path, rules)
    environments: dict[CellKey, Environments] = {}
    facts = []
    for trial in results:
        facts.append(trial.facts)
        environments.setdefault(trial.facts.key, Environments(results.installed)).add(trial.record)
    if not facts:
        raise results.nothing_found()
    return Side(
        results=results,
        cells={cell.key: cell.statistics for cell in triage_in_order(facts).cells},
        environments=environments,
        hosts=tuple(sorted({each.place.host for each in facts if each.place.host})),
        times=tuple(sorted(each.started_at for each in facts if each.started_at)),
        facts=tuple(facts),
    )


def _times(cell: CellStatistics) -> list[Measured]:
    return [Measured(None, math.log(time)) for time in cell.steps.trial_medians_ms] if cell.steps else []


def _match_cells(a: Side, b: Side) -> tuple[dict[CellKey, CellKey], bool]:
    """Map cells of B to cells of A; and whether this ignores the names of environments.

    Raises:
        RequestError: no cell of B has a partner.
    """
    partner: dict[CellKey, CellKey] = {}

    def match(identity: Callable[[CellStatistics], Hashable]) -> None:
        """Match the remaining cells of equal identity, in their order."""
        free: dict[Hashable, list[CellKey]] = {}
        for key, cell in a.cells.items():
            if key not in partner.values():
                free.setdefault(identity(cell), []).append(key)
        for key, cell in b.cells.items():
            if key not in partner and (candidates := free.get(identity(cell))):
                partner[key] = candidates.pop(0)

    match(lambda cell: cell.key)
    match(lambda cell: replace(cell.key, digest=""))  # digests depend on paths
    across = not partner and all(len({cell.environment for cell in side.cells.values()}) == 1 for side in (a, b))
    if across:
        match(lambda cell: (replace(cell.key, cell="", digest=""), cell.mitigations))
    if not partner:
        ours, theirs = (", ".join(first_names([key.label for key in side.cells], 4)) for side in (a, b))
        raise RequestError(
            f"{a.results.path} and {b.results.path} have no cell in common; the first has {ours}, the second {theirs}"
        )
    return {key: partner[key] for key in b.cells if key in partner}, across


def comparison_data(comparison: RunComparison) -> dict[str, Any]:
    """The comparison as strict JSON data, see ``docs/guides/compare.md``. Rates are fractions, step times in ms."""

    def side(of: Side) -> dict[str, Any]:
        return {
            "path": str(of.results.path),
            "trials": of.trials,
            "cells": len(of.cells),
            "hosts": of.hosts,
            "first_trial": next(iter(of.times), None),
            "last_trial": next(reversed(of.times), None),
            "replays_left_out": of.results.replays,
            "unreadable": of.results.unreadable,
        }

    def only(cells: Sequence[CellStatistics]) -> list[dict[str, Any]]:
        named = "workload", "cell", "test", "options"
        return [{**{name: getattr(cell.key, name) or None for name in named}, **_numbers(cell)} for cell in cells]

    data = {
        "schema_version": SCHEMA_VERSION,
        "level": LEVEL,
        "margin": str(comparison.margin),
        "a": side(comparison.a),
        "b": side(comparison.b),
        "matched_across_environments": comparison.matched_across_environments,
        "cells": [
            {column.key: column.value(change) for column in COLUMNS if column.key} for change in comparison.cells
        ],
        "common_speed": comparison.factor and _fields(comparison.factor, "ratio", "cells"),
        "clocks": comparison.clocks,
        "only_in_a": only(comparison.only_a),
        "only_in_b": only(comparison.only_b),
        "environment": {
            "all_cells": [difference.to_plain() for difference in comparison.shared],
            "some_cells": [
                {"cells": cells, "differences": [each.to_plain() for each in differing]}
                for cells, differing in comparison.particular
            ],
        },
    }
    return {key: json_data(value) for key, value in data.items()}


def _numbers(cell: CellStatistics) -> dict[str, Any]:
    return {
        "trials": cell.total,
        "outcomes": {outcome.replace(" ", "_"): len(trials) for outcome, trials in cell.trials.items()},
        "failure_rate": cell.rate,
        "failure_rate_interval": cell.rate_interval,
        "median_step_ms": None if cell.steps is None else cell.steps.median_ms,
    }
