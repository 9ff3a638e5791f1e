"""The verdicts: each cell compared with its baseline."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_aorta.settings import RequestError
from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.cells import CellStatistics, CellTrials
from pytest_aorta.triage.checks import MitigationEffect, drift_warnings, effects
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.rates import (
    Interval,
    difference_interval,
    difference_p,
    holm,
    more_trials,
    upper_bound,
)
from pytest_aorta.triage.sequential import (
    SequentialComparison,
    SequentialTest,
    rate_upper_bound_sequential,
    sequential_comparison,
)
from pytest_aorta.triage.signatures import Signature
from pytest_aorta.triage.speed import Measured, Speed, compare_speeds, measured

#: Probability that any cell of a baseline is called different although none is.
LEVEL = 0.05

#: Ways to fail that are judged one by one; with more of them, differences by chance become likely.
_WAYS = 5


VerdictKind = Literal[
    "baseline", "second baseline", "fixes", "reduces", "worse", "no effect", "undecided", "did not run", "error"
]

#: How the numbers were found: once, after a number of trials that was set before; or such that one may look any time.
Method = Literal["fixed", "sequential"]


@dataclass(frozen=True)
class Comparison:
    """Failure rate of a cell minus that of its baseline, with its 95 % interval.

    ``p`` is two-sided, of this cell alone; ``p_adjusted`` is corrected for the number of cells (Holm).
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
        more_trials: of ``undecided``: about how many more trials of the cell would decide; ``None`` for not known.
        rate_below: of ``fixes``: the failure rate is below this, 95 %.
    """

    kind: VerdictKind
    reason: str = ""
    more_trials: int | None = None
    rate_below: float | None = None

    @property
    def text(self) -> str:
        """For a table: ``undecided (about 12 more trials)``."""
        if self.more_trials is not None:
            return f"undecided (about {self.more_trials} more trials)"
        if self.rate_below is not None:
            return f"fixes (rate below {self.rate_below:.1%})"
        return self.kind


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


@dataclass(frozen=True)
class Baselines:
    """``of``: the baseline of each cell that is compared with one. ``cells``: the baselines themselves."""

    of: dict[CellKey, CellKey]
    cells: tuple[CellKey, ...]

    def family(self, baseline: CellKey) -> list[CellKey]:
        """The cells that are compared with ``baseline``."""
        return [key for key, base in self.of.items() if base == baseline]


def choose_baselines(cells: Sequence[CellStatistics], wanted: str | None = None) -> Baselines:
    """The baseline of each cell.

    Cells of one workload (and test, options) are compared with each other. The baseline is the mitigation set
    ``wanted``, or the cell of that name; else the first cell whose environment or first mitigation is called
    ``baseline-...``, else the first without mitigations (``none``), else the first of all. Unless one was asked for,
    cells that never came to their main work are passed over. Each cell is compared with the baseline's mitigation set
    in its own environment, and that set in other environments with the first of them. A cell of the name ``wanted``
    is the baseline of all.
    """
    groups: dict[tuple[str, str, str, str], list[CellStatistics]] = {}
    for cell in cells:
        groups.setdefault(cell.key.group(), []).append(cell)
    of: dict[CellKey, CellKey] = {}
    found: dict[CellKey, None] = {}
    for group in groups.values():
        first = _first(group, wanted)
        if first is None:
            continue
        found[first.key] = None
        everywhere = wanted is not None and wanted == first.key.cell
        same_set = {} if everywhere else {c.environment: c for c in group if c.mitigations == first.mitigations}
        for cell in group:
            if cell is not first:
                base = same_set.get(cell.environment, first)
                of[cell.key] = first.key if base is cell else base.key
                found[of[cell.key]] = None
    return Baselines(of, tuple(found))


def _first(group: Sequence[CellStatistics], wanted: str | None) -> CellStatistics | None:
    if wanted is not None:
        return next((cell for cell in group if is_named(wanted, cell.key.cell, cell.mitigations)), None)

    def is_called_baseline(cell: CellStatistics) -> bool:
        return any(name.startswith("baseline-") for name in (cell.environment, *cell.mitigations[:1]))

    candidates = [
        *filter(is_called_baseline, group),
        *(cell for cell in group if cell.mitigations == ("none",)),
        *group,
    ]
    return next((cell for cell in candidates if not cell.did_not_run), None)


def check_baseline(wanted: str, cells: Sequence[tuple[str, Sequence[str]]], source: str = "--aorta-baseline") -> None:
    """Refuse a baseline that no cell (label, mitigation set) has; ``source`` is where it was asked for.

    Raises:
        RequestError: naming the cells that there are.
    """
    if not any(is_named(wanted, label, mitigations) for label, mitigations in cells):
        known = ", ".join(dict.fromkeys(label for label, _ in cells))
        raise RequestError(f"{source}: there is no cell {wanted!r}; there are {known}")


def is_named(wanted: str, label: str, mitigations: Sequence[str]) -> bool:
    """Whether a user means this cell: by its label, or by its mitigation set (``a,b`` or ``a+b``)."""
    return wanted == label or wanted.replace("+", ",") == ",".join(mitigations)


@dataclass(frozen=True)
class Pair:
    """Failures and counted trials of a cell and of its baseline, which all have some.

    ``watched``: what their pairs of trials show at any time; ``None`` where the number of trials was set before.
    """

    baseline: CellKey
    failures: int
    trials: int
    base_failures: int
    base_trials: int
    watched: SequentialComparison | None = None

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.failures, self.trials, self.base_failures, self.base_trials


def judge(pairs: Sequence[Pair], margin: float, family: int, planned: int = 0) -> list[tuple[Comparison, Verdict]]:
    """Compare cells with their baselines, corrected for their number (Holm).

    Args:
        pairs: that share the level.
        margin: differences of the failure rate that are no effect.
        family: cells that share the level, for the guess of how many more trials decide.
        planned: comparisons that there will be. A cell that has its first trials later must not take back what was
            concluded before.
    """
    found = [
        (difference_interval(*pair.counts), difference_p(*pair.counts))
        if pair.watched is None
        else (pair.watched.interval, pair.watched.p)
        for pair in pairs
    ]
    adjusted = holm([*(p for _, p in found), *[1.0] * (planned - len(found))])
    judged = []
    for pair, (interval, p), p_adjusted in zip(pairs, found, adjusted, strict=False):
        method: Method = "fixed" if pair.watched is None else "sequential"
        difference = pair.failures / pair.trials - pair.base_failures / pair.base_trials
        comparison = Comparison(pair.baseline, difference, interval, p, p_adjusted, method)
        kind = verdict_of(comparison, pair.failures, margin)
        if kind == "fixes":
            bound = upper_bound if method == "fixed" else rate_upper_bound_sequential
            verdict = Verdict(kind, rate_below=bound(pair.failures, pair.trials))
        elif kind == "undecided":
            more = more_trials(*pair.counts, margin=margin, comparisons=family, sequential=method == "sequential")
            verdict = Verdict(kind, more_trials=more)
        else:
            verdict = Verdict(kind)
        judged.append((comparison, verdict))
    return judged


@dataclass(frozen=True)
class SignatureVerdict:
    """One way to fail, in a cell and in its baseline."""

    signature: Signature
    failures: int
    base_failures: int
    comparison: Comparison
    verdict: Verdict


@dataclass(frozen=True)
class Row:
    """A cell and what is concluded about it.

    Attributes:
        cell: its statistics.
        verdict: on it.
        comparison: with its baseline; ``None`` for a baseline, and where there is nothing to compare.
        speed: of its steps; ``None`` as above.
        by_signature: where cell or baseline have failed in more than one way.
        effect: whether its mitigation can have acted; ``None`` for a cell that is not compared with another one.
        planned: trials of the plan; ``None`` where no plan says it.
    """

    cell: CellStatistics
    verdict: Verdict
    comparison: Comparison | None = None
    speed: Speed | None = None
    by_signature: tuple[SignatureVerdict, ...] = ()
    effect: MitigationEffect | None = None
    planned: int | None = None

    @property
    def has_verdict(self) -> bool:
        """Whether the verdict says more than that there is nothing to compare with."""
        kind = self.verdict.kind
        return self.comparison is not None or kind not in ("baseline", "undecided") or bool(self.verdict.reason)

    @property
    def is_slower(self) -> bool:
        """Whether its steps take longer, which can hide a fault of timing."""
        return self.speed is not None and self.speed.kind == "slower"


@dataclass(frozen=True)
class Table:
    """``rows`` in the order of the plan; ``warnings`` concern several of them."""

    rows: tuple[Row, ...]
    settings: TriageSettings
    warnings: tuple[str, ...] = ()

    def row(self, key: CellKey) -> Row:
        return next(row for row in self.rows if row.cell.key == key)


class Triage:
    """Trials are added as they end; ``table()`` may be asked for at any time."""

    def __init__(self, settings: TriageSettings | None = None) -> None:
        self.settings = settings or TriageSettings()
        self._cells: dict[CellKey, CellTrials] = {}
        #: Of each cell the baseline that it was compared with last, and the sequential test so far.
        self._tests: dict[CellKey, tuple[CellKey, SequentialTest]] = {}

    def declare(self, key: CellKey, environment: str, mitigations: tuple[str, ...]) -> None:
        """A cell of the plan. Cells are listed in the order in which they are declared, or first have a trial."""
        if key not in self._cells:
            self._cells[key] = CellTrials(key, environment, mitigations)

    def keep(self, keys: Collection[CellKey]) -> None:
        """Forget declared cells that have no trial, and will have none."""
        for key, trials in list(self._cells.items()):
            if key not in keys and not trials.has_begun:
                del self._cells[key]

    def begin(self, key: CellKey, index: int) -> None:
        """A trial of a declared cell has begun."""
        self._cells[key].begin(index)

    def add(self, facts: TrialFacts) -> None:
        """A trial is over."""
        self.declare(facts.key, facts.environment, facts.mitigations)
        self._cells[facts.key].add(facts)

    @property
    def cells(self) -> list[CellTrials]:
        return list(self._cells.values())

    def baselines(self) -> Baselines:
        """Which cell each is compared with by now."""
        return choose_baselines([trials.statistics for trials in self._cells.values()], self.settings.baseline)

    def compare(self, keys: Sequence[CellKey], baseline: CellKey, planned: int) -> list[tuple[Comparison, Verdict]]:
        """What is known by now of cells against their baseline, valid however often one looks."""
        pairs = [self._pair(key, baseline, sequential=True) for key in keys]
        return judge(pairs, self.settings.margin, planned, planned)

    def table(self, *, running: bool = False) -> Table:
        """The verdicts on what is over by now.

        ``running``: whether more trials will follow, so that only sequential statistics hold.
        """
        sequential = running or self.settings.sequential
        cells = {key: trials.statistics for key, trials in self._cells.items()}
        baselines = self.baselines()
        families = {baseline: baselines.family(baseline) for baseline in baselines.cells}
        rows = {key: Row(cell, _uncompared(cell, cells, baselines)) for key, cell in cells.items()}
        for baseline, family in families.items():
            compared = [key for key in family if cells[key].counted and cells[baseline].counted]
            planned = len(family) if sequential else 0
            pairs = [self._pair(key, baseline, sequential) for key in compared]
            judged = judge(pairs, self.settings.margin, len(compared), planned)
            ways = self._ways(compared, baseline, sequential)
            speeds = self._speeds(compared, baseline, sequential, len(family))
            for key, (comparison, verdict), speed in zip(compared, judged, speeds, strict=True):
                rows[key] = Row(cells[key], verdict, comparison, speed, tuple(ways.get(key, ())))
        for key, effect in effects(cells, baselines.of).items():
            rows[key] = _with_effect(rows[key], effect)
        drifts = () if running else drift_warnings(self.cells, families)
        contradictions = filter(None, map(_contradiction, rows.values()))
        return Table(tuple(rows.values()), self.settings, (*contradictions, *drifts))

    def _pair(self, key: CellKey, baseline: CellKey, sequential: bool) -> Pair:
        cell, base = self._cells[key].statistics, self._cells[baseline].statistics
        watched = self._test(key, baseline).comparison() if sequential else None
        return Pair(baseline, cell.failures, cell.counted, base.failures, base.counted, watched)

    def _test(self, key: CellKey, baseline: CellKey) -> SequentialTest:
        """The sequential test of a cell, with all pairs of trials that are complete by now."""
        before, test = self._tests.get(key, (None, None))
        if test is None or before != baseline:
            test = SequentialTest(self.settings.margin, 1 - LEVEL)
            self._tests[key] = baseline, test
        pairs = list(zip(self._cells[baseline].stream(), self._cells[key].stream(), strict=False))[test.pairs :]
        test.extend([base.is_failure for base, _ in pairs], [cell.is_failure for _, cell in pairs])
        return test

    def _speeds(self, compared: Sequence[CellKey], baseline: CellKey, sequential: bool, family: int) -> list[Speed]:
        def times(key: CellKey) -> list[Measured]:
            cell = self._cells[key]
            return measured(cell.stream() if sequential else cell.finished)

        base = times(baseline)
        sides = [(times(key), base) for key in compared]
        return compare_speeds(sides, self.settings.speed_margin, sequential=sequential, family=family)

    def _ways(
        self, compared: Sequence[CellKey], baseline: CellKey, sequential: bool
    ) -> dict[CellKey, list[SignatureVerdict]]:
        """For cells that have, together with their baseline, failed in several ways: the verdict on each way.

        Corrected for the number of cells and ways together.
        """
        base = self._cells[baseline]
        theirs = base.statistics.signature_numbers
        asked: list[tuple[CellKey, Signature]] = []
        pairs: list[Pair] = []
        for key in compared:
            cell = self._cells[key]
            ours = cell.statistics.signature_numbers
            signatures = sorted({**theirs, **ours}, key=lambda each: -(ours.get(each, 0) + theirs.get(each, 0)))
            for signature in signatures[:_WAYS] if len(signatures) > 1 else ():
                watched = None
                if sequential:
                    one, other = ([facts.signature == signature for facts in side.stream()] for side in (base, cell))
                    watched = sequential_comparison(one, other, self.settings.margin, 1 - LEVEL)
                asked.append((key, signature))
                numbers = ours.get(signature, 0), cell.statistics.counted
                pairs.append(Pair(baseline, *numbers, theirs.get(signature, 0), base.statistics.counted, watched))
        found: dict[CellKey, list[SignatureVerdict]] = {}
        judged = judge(pairs, self.settings.margin, len(compared))
        for (key, signature), pair, (comparison, verdict) in zip(asked, pairs, judged, strict=True):
            way = SignatureVerdict(signature, pair.failures, pair.base_failures, comparison, verdict)
            found.setdefault(key, []).append(way)
        return found


def _uncompared(cell: CellStatistics, cells: Mapping[CellKey, CellStatistics], baselines: Baselines) -> Verdict:
    """The verdict on a cell as far as it is not compared with another one."""
    if cell.did_not_run:
        return Verdict("did not run")
    if cell.total and not cell.counted:
        return Verdict("error", "no trial says anything about the workload")
    if cell.key not in baselines.of:
        return Verdict("baseline" if cell.key in baselines.cells else "undecided")
    base = cells[baselines.of[cell.key]]
    if cell.total and base.total and not base.counted:
        return Verdict("undecided", f"the baseline {base.key.cell} did not run")
    return Verdict("undecided")


def _with_effect(row: Row, effect: MitigationEffect) -> Row:
    """What has the variables of its baseline is a second baseline, whatever its numbers are."""
    if not effect.is_second_baseline or not row.cell.counted:
        return replace(row, effect=effect)
    return replace(row, effect=effect, verdict=Verdict("second baseline", effect.reason))


def _contradiction(row: Row) -> str:
    """A sentence on a second baseline that differs from the first; empty for any other cell."""
    comparison = row.comparison
    if row.verdict.kind != "second baseline" or comparison is None or comparison.p_adjusted >= LEVEL:
        return ""
    how = "less" if comparison.difference < 0 else "more"
    return (
        f"{row.cell.key.cell} fails {how} often than {comparison.baseline.cell} (p = {comparison.p_adjusted:.2g}), "
        "although it has the same variables: something else differs between them, such as when their trials ran"
    )


def triage_of(facts: Iterable[TrialFacts], settings: TriageSettings | None = None) -> Table:
    """The table of trials that are all over."""
    triage = Triage(settings)
    for each in facts:
        triage.add(each)
    return triage.table()
