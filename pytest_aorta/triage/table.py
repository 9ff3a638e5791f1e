"""The table of a triage: every cell with its statistics and its verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_aorta.triage.baselines import Baselines, choose_baselines
from pytest_aorta.triage.cells import CellStatistics, CellTrials
from pytest_aorta.triage.checks.confounds import Confound, confound_of
from pytest_aorta.triage.checks.drift import drift_warnings
from pytest_aorta.triage.checks.mitigations import MitigationEffect, effects
from pytest_aorta.triage.comparisons import Comparisons, SignatureComparison
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.failures.signatures import Signature
from pytest_aorta.triage.settings import TriageSettings
from pytest_aorta.triage.statistics.proportions import upper_bound
from pytest_aorta.triage.statistics.sample_size import more_trials
from pytest_aorta.triage.statistics.sequential import SequentialComparison, rate_upper_bound_sequential
from pytest_aorta.triage.verdicts import LEVEL, Comparison, Method, Verdict, verdict_of


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
        confound: of its effect; ``None`` as above.
        by_signature: where cell or baseline have failed in more than one way.
        effect: whether its mitigation can have acted; ``None`` for a cell that is not compared with another one.
    """

    cell: CellStatistics
    verdict: Verdict
    comparison: Comparison | None = None
    confound: Confound | None = None
    by_signature: tuple[SignatureVerdict, ...] = ()
    effect: MitigationEffect | None = None


@dataclass(frozen=True)
class Table:
    """``rows`` in the order of the plan; ``warnings`` concern several of them."""

    rows: tuple[Row, ...]
    settings: TriageSettings
    warnings: tuple[str, ...] = ()

    def row(self, key: CellKey) -> Row:
        """The row of a cell."""
        return next(row for row in self.rows if row.cell.key == key)


class Triage:
    """Trials are added as they end; ``table()`` may be asked for at any time."""

    def __init__(self, settings: TriageSettings | None = None) -> None:
        self.settings = settings or TriageSettings()
        self._cells: dict[CellKey, CellTrials] = {}
        self._comparisons = Comparisons(self.settings.margin)

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
        """All cells, in order."""
        return list(self._cells.values())

    def baselines(self) -> Baselines:
        """Which cell each is compared with by now."""
        return choose_baselines([trials.statistics for trials in self._cells.values()], self.settings.baseline)

    def compare(self, key: CellKey, baseline: CellKey) -> SequentialComparison:
        """What is known by now of a cell against a baseline, without a correction for other cells."""
        return self._comparisons.sequential(self._cells[key], self._cells[baseline])

    def table(self, *, running: bool = False) -> Table:
        """The verdicts on what is over by now.

        ``running``: whether more trials will follow, so that only sequential statistics hold.
        """
        method: Method = "sequential" if running or self.settings.sequential else "fixed"
        cells = {key: trials.statistics for key, trials in self._cells.items()}
        baselines = choose_baselines(list(cells.values()), self.settings.baseline)
        rows = {key: Row(cell, _uncompared(cell, cells, baselines)) for key, cell in cells.items()}
        for baseline in baselines.cells:
            family = [key for key, base in baselines.of.items() if base == baseline]
            compared = [key for key in family if cells[key].counted and cells[baseline].counted]
            for row in self._compared(compared, baseline, method, len(family)):
                rows[row.cell.key] = row
        for key, effect in effects(cells, baselines.of).items():
            rows[key] = _with_effect(rows[key], effect)
        drifts = () if running else drift_warnings(self.cells, baselines)
        contradictions = filter(None, map(_contradiction, rows.values()))
        return Table(tuple(rows.values()), self.settings, (*contradictions, *drifts))

    def _compared(self, family: Sequence[CellKey], baseline: CellKey, method: Method, planned: int) -> list[Row]:
        """The rows of cells with a common baseline; ``planned``: how many it has, also those without trials yet."""
        comparisons = self._comparisons.of_family(family, baseline, self._cells, method, planned)
        by_signature = self._comparisons.by_signature(family, baseline, self._cells, method)
        base = self._cells[baseline].statistics
        found = []
        for key, comparison in zip(family, comparisons, strict=True):
            cell = self._cells[key].statistics
            verdict = self._verdict(
                comparison, (cell.failures, cell.counted), (base.failures, base.counted), len(family)
            )
            ways = tuple(self._way(each, cell, base, len(family)) for each in by_signature.get(key, ()))
            found.append(Row(cell, verdict, comparison, confound_of(cell, base), ways))
        return found

    def _way(
        self, found: SignatureComparison, cell: CellStatistics, base: CellStatistics, family: int
    ) -> SignatureVerdict:
        numbers, base_numbers = (found.failures, cell.counted), (found.base_failures, base.counted)
        verdict = self._verdict(found.comparison, numbers, base_numbers, family)
        return SignatureVerdict(found.signature, found.failures, found.base_failures, found.comparison, verdict)

    def _verdict(
        self, comparison: Comparison, numbers: tuple[int, int], base_numbers: tuple[int, int], family: int
    ) -> Verdict:
        """``numbers``: failures and counted trials."""
        kind = verdict_of(comparison, numbers[0], self.settings.margin)
        if kind == "fixes":
            bound = upper_bound if comparison.method == "fixed" else rate_upper_bound_sequential
            return Verdict(kind, rate_below=bound(*numbers))
        if kind == "undecided":
            more = more_trials(
                *numbers,
                *base_numbers,
                margin=self.settings.margin,
                comparisons=family,
                sequential=comparison.method == "sequential",
            )
            return Verdict(kind, more_trials=more)
        return Verdict(kind)


def _uncompared(cell: CellStatistics, cells: dict[CellKey, CellStatistics], baselines: Baselines) -> Verdict:
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
