"""The verdicts: each cell compared with its baseline."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.texts import counted
from pytest_aorta.settings import RequestError
from pytest_aorta.triage import TriageSettings, rates
from pytest_aorta.triage.cells import CellStatistics, CellTrials, MitigationEffect, effects
from pytest_aorta.triage.draws import (
    StartComparison,
    check_forks,
    group_by_start,
    seconds_of_process,
    start_rate_below,
)
from pytest_aorta.triage.factorial import Factorial, factorials
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.health import why_slower
from pytest_aorta.triage.judging import (
    DIFFERENT,
    ENOUGH,
    LEVEL,
    Comparison,
    Pair,
    Verdict,
    bound_on_rate,
    judge,
    loss_doubt,
    outlasts,
    times,
)
from pytest_aorta.triage.rates import Counts
from pytest_aorta.triage.replays import ReplayedCell
from pytest_aorta.triage.rounds import Rounds, analyse_rounds, is_sooner, round_counts
from pytest_aorta.triage.signatures import Signature
from pytest_aorta.triage.slow_ranks import slow_ranks
from pytest_aorta.triage.speed import (
    OperatorChange,
    Speed,
    Subject,
    changed_operators,
    compare_speeds,
    measured,
)
from pytest_aorta.triage.where import (
    NO_ASSOCIATIONS,
    Associations,
    Node,
    associations,
    compare_nodes,
    dependence,
)

if TYPE_CHECKING:
    from pytest_aorta.triage.sequential import SequentialTest

#: At most so many ways to fail are judged one by one; with more, differences by chance become likely.
WAYS = 5

#: With so many cells, a run is a search for the one that acts, so hopeless cells end early.
SEARCHED = 4

#: Why a difference is no verdict yet, in a run that ends with its verdicts.
NOT_CONFIRMED = "fresh trials have not confirmed it yet"


@dataclass(frozen=True)
class Baselines:
    """``of``: the baseline of each compared cell. ``cells``: the baselines themselves."""

    of: dict[CellKey, CellKey]
    cells: tuple[CellKey, ...]

    def family(self, baseline: CellKey) -> list[CellKey]:
        """All cells compared with ``baseline``."""
        return [key for key, base in self.of.items() if base == baseline]


def choose_baselines(cells: Sequence[CellStatistics], wanted: str | None = None) -> Baselines:
    """Choose the baseline of each cell.

    Cells of one workload (and test, options) are compared with each other. The baseline is the mitigation set
    ``wanted``, or the cell of that name; else the first cell whose environment or first mitigation is called
    ``baseline-...``, else the first without mitigations (``none``), else the first. Unless ``wanted`` is given, cells
    that never reached their main work are skipped. In its own environment, each cell is compared with the baseline's
    mitigation set; that set in other environments is compared with the first of them. If ``wanted`` names a cell, that
    cell is the baseline of all others.
    """
    groups: dict[tuple[str, str, str, str], list[CellStatistics]] = {}
    for cell in cells:
        groups.setdefault(cell.key.group(), []).append(cell)
    of: dict[CellKey, CellKey] = {}
    chosen: dict[CellKey, None] = {}
    for group in groups.values():
        if wanted is None:
            called = (
                cell
                for cell in group
                if any(name.startswith("baseline-") for name in (cell.environment, *cell.mitigations[:1]))
            )
            candidates = [*called, *(cell for cell in group if cell.mitigations == ("none",)), *group]
            first = next((cell for cell in candidates if not cell.did_not_run), None)
        else:
            first = next((cell for cell in group if is_named(wanted, cell.key.cell, cell.mitigations)), None)
        if first is None:
            continue
        chosen[first.key] = None
        everywhere = wanted is not None and wanted == first.key.cell
        same_set = {} if everywhere else {c.environment: c for c in group if c.mitigations == first.mitigations}
        for cell in group:
            if cell is not first:
                base = same_set.get(cell.environment, first)
                of[cell.key] = first.key if base is cell else base.key
                chosen[of[cell.key]] = None
    return Baselines(of, tuple(chosen))


def check_baseline(wanted: str, cells: Sequence[tuple[str, Sequence[str]]], source: str = "--aorta-baseline") -> None:
    """Refuse a baseline that is no cell (label, mitigation set); ``source``: the option or key that asked for it.

    Raises:
        RequestError: with the names of all cells.
    """
    if not any(is_named(wanted, label, mitigations) for label, mitigations in cells):
        known = ", ".join(dict.fromkeys(label for label, _ in cells))
        raise RequestError(f"{source}: there is no cell {wanted!r}; there are {known}")


def is_named(wanted: str, label: str, mitigations: Sequence[str]) -> bool:
    """Whether ``wanted`` is the cell's label or its mitigation set (``a,b`` or ``a+b``)."""
    return wanted == label or wanted.replace("+", ",") == ",".join(mitigations)


@dataclass(frozen=True)
class SignatureVerdict:
    """The verdict on one way to fail.

    ``hidden``: if it is more frequent in the cell, the number of the baseline's trials in which another way to fail may
    have hidden it; else 0.
    """

    signature: Signature
    failures: int
    base_failures: int
    comparison: Comparison
    verdict: Verdict
    hidden: int = 0


@dataclass(frozen=True)
class Row:
    """A cell with its conclusions; most are ``None`` for a baseline, or if there is nothing to compare.

    Attributes:
        operators: operators whose time differs from the baseline's, if both have a profile.
        by_signature: verdicts on each way to fail, if there are several.
        rate_below: for a cell without failures: upper 95 % bound on its failure rate.
        start_rate_below: for such a cell whose starts served several trials: upper bound on the share of failing
        starts.
        planned: number of trials in the plan; ``None`` if unknown.
    """

    cell: CellStatistics
    verdict: Verdict
    comparison: Comparison | None = None
    speed: Speed | None = None
    operators: tuple[OperatorChange, ...] = ()
    by_signature: tuple[SignatureVerdict, ...] = ()
    effect: MitigationEffect | None = None
    rate_below: float | None = None
    start_rate_below: float | None = None
    planned: int | None = None

    @property
    def has_verdict(self) -> bool:
        """Whether there is a verdict, rather than nothing to compare with."""
        kind = self.verdict.kind
        return self.comparison is not None or kind not in ("baseline", "undecided") or bool(self.verdict.reason)

    @property
    def p(self) -> float:
        return 1.0 if self.comparison is None else self.comparison.p_adjusted

    @property
    def is_on_speed(self) -> bool:
        """Whether the verdict is on its step times, as nothing has failed."""
        return self.verdict.kind in ("slower", "faster", "similar") or self.verdict.of in (
            "on the speed",
            "with clocks",
        )

    @property
    def is_slower(self) -> bool:
        """Whether its steps take longer, which can hide a fault of timing."""
        return self.speed is not None and self.speed.kind == "slower"


@dataclass(frozen=True)
class Table:
    """All rows of a triage in the order of the plan.

    Attributes:
        warnings, associations: they concern several rows.
        divergence: trials that compute something else than others, if the run has looked.
        nodes: comparison of the nodes of a sweep.
        replays: failed trials that were run again with collectors.
        factorials: which variables act, for cells that are all combinations of values.
    """

    rows: tuple[Row, ...]
    settings: TriageSettings
    warnings: tuple[str, ...] = ()
    associations: Associations = NO_ASSOCIATIONS
    divergence: tuple[Mapping[str, Any], ...] = ()
    nodes: tuple[Node, ...] = ()
    replays: tuple[ReplayedCell, ...] = ()
    factorials: tuple[Factorial, ...] = ()

    def with_replays(self, replays: Sequence[ReplayedCell]) -> Table:
        """Add replays, and a warning for each cell whose failure rate collectors change."""
        warnings = (each.warning for each in replays if each.changes_rate)
        return replace(self, replays=tuple(replays), warnings=(*self.warnings, *warnings))

    def row(self, key: CellKey) -> Row:
        return next(row for row in self.rows if row.cell.key == key)


class Triage:
    """Collects trials as they end; ``table()`` judges them at any time."""

    def __init__(self, settings: TriageSettings | None = None) -> None:
        self.settings = settings or TriageSettings()
        self._cells: dict[CellKey, CellTrials] = {}
        #: Sequential tests by cell, baseline and way to fail.
        self._tests: dict[tuple[CellKey, CellKey, Signature | None], SequentialTest] = {}
        #: Number of trials, and the analysis of their rounds.
        self._shared: tuple[int, Rounds] | None = None

    def declare(
        self, key: CellKey, environment: str, mitigations: tuple[str, ...], begun: int | None = None
    ) -> CellTrials:
        """Add a cell of the plan, and the index of a trial that has ``begun``.

        Cells are listed in the order in which they are declared or first have a trial.
        """
        if (cell := self._cells.get(key)) is None:
            cell = self._cells[key] = CellTrials(key, environment, mitigations)
        if begun is not None:
            cell.trials.setdefault(begun, None)
        return cell

    def keep(self, keys: Collection[CellKey]) -> None:
        """Forget declared cells without trials that are not in ``keys``."""
        for key, cell in list(self._cells.items()):
            if key not in keys and not cell.trials:
                del self._cells[key]

    def add(self, facts: TrialFacts) -> None:
        """Add a finished trial."""
        self.declare(facts.key, facts.environment, facts.mitigations).add(facts)

    @property
    def cells(self) -> list[CellTrials]:
        return list(self._cells.values())

    def baselines(self) -> Baselines:
        """The present baseline of each cell."""
        return choose_baselines([trials.statistics for trials in self._cells.values()], self.settings.baseline)

    def compare(
        self, keys: Sequence[CellKey], baseline: CellKey, family: int, *, sequential: bool = True, ended: bool = False
    ) -> list[tuple[Comparison, Verdict]]:
        """Compare cells with their baseline; if ``sequential``, the results are valid at any time.

        ``ended``: no trial follows, so the last starts are complete.
        """
        number = len(self.baselines().family(baseline)) if keys else 0
        pairs = [self._pair(key, baseline, number, sequential, ended) for key in keys]
        judged = judge(pairs, self.settings.margin, family, family if sequential else 0)
        doubted = []
        fewest = 1 if self.settings.power else SEARCHED
        differ = any(verdict.kind in DIFFERENT for _, verdict in judged)
        runs = dependence(self.cells) if differ else None
        for key, pair, (comparison, verdict) in zip(keys, pairs, judged, strict=True):
            doubt = ""
            if verdict.kind == "undecided" and sequential and self.settings.screens and family >= fewest:
                from pytest_aorta.triage.sequential import hopeless_at

                if hopeless := hopeless_at(_paired(self._cells[baseline], self._cells[key], ended=ended)):
                    base_failures, failures, number = hopeless
                    what = "starts" if pair.starts is not None else "trials"
                    reason = f"given up after {number} {what}: {failures:.3g} failures against {base_failures:.3g}"
                    verdict = Verdict("no cure", reason, of=times(comparison.ratio), is_likely=True)
            if verdict.kind in DIFFERENT or verdict.is_same:
                cells = self._cells[key].statistics, self._cells[baseline].statistics
                doubt = loss_doubt(*cells, verdict.kind, family)
            if verdict.kind in DIFFERENT and not doubt and sequential and self.settings.confirm:
                from pytest_aorta.triage.sequential import is_confirmed

                more, less = (baseline, key) if verdict.kind != "worse" else (key, baseline)
                if not is_confirmed(_paired(self._cells[more], self._cells[less], ended=ended), LEVEL / family):
                    doubt = NOT_CONFIRMED
            if verdict.kind in DIFFERENT and runs is not None and not outlasts(runs, pair.counts, family):
                come = "come" if runs.is_significant else "may come"
                doubt = f"failures {come} in runs: {runs.all_trials} trials say as much as about {runs.independent}"
            doubted.append((comparison, Verdict("undecided", doubt) if doubt else verdict))
        return doubted

    def table(self, *, running: bool = False) -> Table:
        """The verdicts on all finished trials.

        ``running``: more trials will follow, so only sequential statistics hold.
        """
        sequential = running or self.settings.sequential
        cells = {key: trials.statistics for key, trials in self._cells.items()}
        baselines = self.baselines()
        rows = {key: Row(cell, _uncompared(cell, cells, baselines)) for key, cell in cells.items()}
        for baseline in baselines.cells:
            family = baselines.family(baseline)
            compared = [key for key in family if cells[key].counted and cells[baseline].counted]
            number = len(family if sequential else compared)
            judged = self.compare(compared, baseline, number, sequential=sequential, ended=not running)
            ways = self._ways(compared, baseline, sequential, ended=not running)
            speeds = self.speeds(compared, baseline, number, sequential=sequential)
            for key, (comparison, verdict), speed in zip(compared, judged, speeds, strict=True):
                if verdict.kind != "confounded" and key in ways:
                    verdict = self._refine_by_ways(ways[key], verdict)
                is_open = verdict.kind == "undecided" or verdict.is_same
                if is_open and not (cells[key].failures or cells[baseline].failures):
                    if speed.held_back:
                        verdict = Verdict("confounded", speed.held_back, of="with clocks")
                    elif speed.kind in ("slower", "faster") or (self.settings.speed and speed.kind == "similar"):
                        verdict = Verdict(speed.kind)
                    elif self.settings.speed:
                        verdict = Verdict("undecided", of="on the speed")
                changed: tuple[OperatorChange, ...] = ()
                cell, base = self._cells[key], self._cells[baseline]
                if not running and _overlap(cell, base):
                    margin = self.settings.speed_margin
                    changed = changed_operators(cell.finished, base.finished, margin, len(compared))
                rows[key] = Row(cells[key], verdict, comparison, speed, changed, tuple(ways.get(key, ())))
        contradictions = []
        for key, effect in effects(cells, baselines.of).items():
            row = rows[key] = replace(rows[key], effect=effect)
            if effect.is_unread and row.verdict.kind in ("no cure", "undecided") and row.comparison is not None:
                rows[key] = replace(row, verdict=Verdict("not read", "; ".join(effect.sentences)))
            # A cell with the variables of its baseline is a second baseline, whatever its numbers are.
            if not effect.is_second_baseline or not row.cell.counted:
                continue
            rows[key] = replace(row, verdict=Verdict("second baseline", effect.reason))
            if row.comparison is not None and row.p < LEVEL:
                how = "less" if row.comparison.difference < 0 else "more"
                contradictions.append(
                    f"{key.cell} fails {how} often than {row.comparison.baseline.cell} (p = {row.p:.2g}), although it "
                    "has the same variables: something else differs between them, such as when their trials ran"
                )
        for key, cell_numbers in cells.items():
            if cell_numbers.counted and not cell_numbers.failures:
                below = bound_on_rate(cell_numbers.counted, sequential=sequential)
                of_starts = start_rate_below(cell_numbers.starts)
                if of_starts is not None and sequential:
                    of_starts = bound_on_rate(len(cell_numbers.starts), sequential=True)
                rows[key] = replace(rows[key], rate_below=below, start_rate_below=of_starts)
        if running:
            return Table(tuple(rows.values()), self.settings, tuple(contradictions))
        related = associations(self.cells, differ=any(row.verdict.kind in DIFFERENT for row in rows.values()))
        matched: dict[str, list[bool]] = {}  # per expression for metrics: whether a line of each trial matches it
        for facts in (facts for cell in self.cells for facts in cell.finished if facts.is_counted):
            for name, has_matched in facts.matched:
                matched.setdefault(name, []).append(has_matched)
        unmatched = [(name, counted(len(each), "trial")) for name, each in matched.items() if not any(each)]
        idle = (f"--aorta-{name} matched in 0 of {number}" for name, number in unmatched)
        checks = [(cell.key, check_forks(cell.finished)) for cell in self.cells]
        forks = (f"{key.label}: {check.sentence}" for key, check in checks if check.differ)
        warnings = (*related.warnings, *contradictions, *forks, *idle, *slow_ranks(self.cells))
        nodes = tuple(self.nodes()) if self.settings.by_node else ()
        table = Table(tuple(rows.values()), self.settings, warnings, related, nodes=nodes)
        if dependence(self.cells):
            return table
        pairs = partial(_paired, ended=True)
        by_rounds = partial(lambda: self.rounds().are_shared)
        return replace(table, factorials=factorials(self.cells, pairs, sequential=sequential, by_rounds=by_rounds))

    def _refine_by_ways(self, ways: Sequence[SignatureVerdict], verdict: Verdict) -> Verdict:
        """Refine a verdict if one way to fail has replaced another, or shows because another is gone."""
        gone = [way.signature.short for way in ways if way.verdict.kind in ("fixes", "reduces")]
        new = [way.signature.short for way in ways if way.verdict.kind == "worse"]
        uncovered = [way.signature.short for way in ways if way.hidden]
        if gone and new and not dependence(self.cells):
            return Verdict("exchanges", of=f"{gone[0]} for {new[0]}")
        if gone and uncovered and verdict.kind in ("undecided", "no cure"):
            return Verdict("leaves", of=uncovered[0])
        return verdict

    def nodes(self) -> list[Node]:
        """Compare all nodes, see ``compare_nodes``."""
        return compare_nodes((facts for cell in self.cells for facts in cell.finished), self.settings.speed_margin)

    def more_starts(self, *, running: bool = True) -> dict[CellKey, int]:
        """How many more processes each cell needs for a verdict; cells that need none are missing.

        ``running``: as in ``table``. Even if tests hold at one time only (no ``--aorta-stop=decided``), a run may go on
        to these numbers, as they end where a clear split would be a difference.
        """
        needed: dict[CellKey, int] = {}
        sequential = self.settings.sequential
        baselines = self.baselines()
        for baseline in baselines.cells:
            keys = [key for key in baselines.family(baseline) if self._cells[key].statistics.counted]
            if not keys or not self._cells[baseline].statistics.counted:
                continue
            judged = self.compare(keys, baseline, len(keys), sequential=sequential, ended=not running)
            for key, (_, verdict) in zip(keys, judged, strict=True):
                for each in (key, baseline) if verdict.more_starts else ():
                    needed[each] = max(needed.get(each, 0), verdict.more_starts or 0)
        return needed

    def _starts(
        self, key: CellKey, baseline: CellKey, family: int, signature: Signature | None = None
    ) -> StartComparison | None:
        """The test of starts for a cell or one way to fail; ``None`` if each trial is a start.

        A process that all cells share makes no difference between them.
        """
        cell, base = self._cells[key].statistics, self._cells[baseline].statistics
        if cell.shared_starts is None and base.shared_starts is None:
            return None
        if all(facts.in_one_process for facts in (*cell.finished, *base.finished)):
            return None
        if signature is None:
            ours, theirs = cell.starts, base.starts
        else:
            ours, theirs = (
                group_by_start(side.finished, lambda facts: facts.signature == signature) for side in (cell, base)
            )
        seconds = seconds_of_process((*cell.finished, *base.finished))
        return StartComparison(ours, theirs, seconds, family + 1)

    def _pair(self, key: CellKey, baseline: CellKey, family: int, sequential: bool, ended: bool) -> Pair:
        """The counts of a cell and its baseline, place by place."""
        cell, base = self._cells[key], self._cells[baseline]
        ours, theirs = cell.statistics, base.statistics
        counts = (ours.failures, ours.counted, theirs.failures, theirs.counted)
        strata: tuple[Counts, ...] = ()
        apart = "" if _overlap(cell, base) else "time"
        if len({**ours.places, **theirs.places}) > 1:
            common = [place for place in ours.places if place in theirs.places]
            strata = tuple((*ours.places[place], *theirs.places[place]) for place in common)
            if not common:
                hosts = [{place[0] for place in side.places} for side in (ours, theirs)]
                apart = "device" if hosts[0] & hosts[1] else "host"
        watched = self._test(key, baseline, ended=ended).comparison() if sequential else None
        rounds = () if sequential else self._rounds(key, baseline)
        starts = self._starts(key, baseline, family)
        # If one side ran sooner, a clear difference that no window can show may come from the time.
        if rounds and not apart and min(ours.counted, theirs.counted) >= ENOUGH:
            told = rates.conditional_p(strata) if strata else rates.difference_p(*counts)
            apart = "time" if told < LEVEL <= rates.least_p(rounds) else ""
        return Pair(baseline, counts, strata or (counts,), rounds, watched, apart, starts)

    def _rounds(self, key: CellKey, baseline: CellKey) -> tuple[Counts, ...]:
        """The counts of a cell and its baseline by round and place; empty if rounds do not matter.

        They matter if trials of one index have the same seeds, cells fail together, or one of both ran sooner.
        """
        sides = [self._cells[each].stream() for each in (key, baseline)]
        if pairs := _same_seeds(*sides):
            return pairs
        if not self.rounds().are_shared and not is_sooner(*sides):
            return ()
        return round_counts(*sides)

    def rounds(self) -> Rounds:
        """Analyse effects that the cells of a round share."""
        streams = [cell.stream() for cell in self.cells]
        number = sum(map(len, streams))
        if self._shared is None or self._shared[0] != number:
            self._shared = number, analyse_rounds(streams)
        return self._shared[1]

    def _test(
        self, key: CellKey, baseline: CellKey, signature: Signature | None = None, *, ended: bool = False
    ) -> SequentialTest:
        """The sequential test of a cell or one way to fail, with all complete pairs."""
        from pytest_aorta.triage.sequential import SequentialTest

        pairs = _paired(self._cells[baseline], self._cells[key], signature, ended=ended)
        test = self._tests.get((key, baseline, signature))
        # Trials of another place may come before earlier ones: then the test starts anew.
        if test is None or pairs[: len(test.pairs)] != test.pairs:
            test = self._tests[key, baseline, signature] = SequentialTest(self.settings.margin, 1 - LEVEL)
        test.pairs += pairs[len(test.pairs) :]
        return test

    def speeds(self, compared: Sequence[CellKey], baseline: CellKey, family: int, *, sequential: bool) -> list[Speed]:
        """Compare the step times of cells with their baseline; ``family`` cells share the level."""
        of: Subject = "steps" if self._cells[baseline].statistics.steps is not None else "runs"
        times = {
            key: measured(self._cells[key].stream() if sequential else self._cells[key].finished, of)
            for key in (*compared, baseline)
        }
        sides = [(times[key], times[baseline]) for key in compared]
        speeds = compare_speeds(sides, self.settings.speed_margin, sequential=sequential, family=family)
        judged = []
        for key, speed in zip(compared, speeds, strict=True):
            speed = replace(speed, of=of)
            # Clocks may change overnight.
            if speed.kind != "n/a" and not _overlap(self._cells[key], self._cells[baseline]):
                speed = replace(speed, kind="undecided", reason="its trials ran at another time")
            if speed.kind in ("slower", "faster"):
                both = [key, baseline] if speed.kind == "slower" else [baseline, key]
                slow, fast = (self._cells[each] for each in both)
                names = slow.key.cell, fast.key.cell
                if why := why_slower(slow.finished, fast.finished, names):
                    speed = replace(speed, kind="undecided", reason=why, held_back=why)
            judged.append(speed)
        return judged

    def _ways(
        self, compared: Sequence[CellKey], baseline: CellKey, sequential: bool, *, ended: bool = False
    ) -> dict[CellKey, list[SignatureVerdict]]:
        """Judge each way to fail of cells that have, together with their baseline, failed in several ways.

        Corrected for the number of cells and ways together. A trial that failed in one way could not fail in another.
        So a way that is more frequent is compared among the trials that could have reached it: a fault is not worse for
        being no longer hidden. If that leaves no difference, the other way comes first. If it leaves one, the way is
        new and may hide others: a rarer way is compared among the trials that no new way has ended.
        """
        base = self._cells[baseline].statistics
        theirs = base.signature_numbers
        asked: list[tuple[CellKey, Signature]] = []
        pairs: list[Pair] = []
        for key in compared:
            cell = self._cells[key].statistics
            ours = cell.signature_numbers
            signatures = sorted({**theirs, **ours}, key=lambda each: -(ours.get(each, 0) + theirs.get(each, 0)))
            could: dict[Signature, Counts] = {}
            new = {each for each in signatures if ours.get(each, 0) * base.counted > theirs.get(each, 0) * cell.counted}
            for signature in list(new):
                one, other = ours.get(signature, 0), theirs.get(signature, 0)
                counts = (one, cell.counted - cell.failures + one, other, base.counted - base.failures + other)
                could[signature] = counts
                if rates.difference_p(*counts) >= LEVEL:
                    new.remove(signature)
            by_new, base_by_new = (sum(numbers.get(each, 0) for each in new) for numbers in (ours, theirs))
            for signature in signatures[:WAYS] if len(signatures) > 1 else ():
                one, other = ours.get(signature, 0), theirs.get(signature, 0)
                rest = (one, cell.counted - by_new, other, base.counted - base_by_new)
                counts = could.get(signature, rest)
                watched = self._test(key, baseline, signature, ended=ended).comparison() if sequential else None
                if watched is not None:
                    watched = replace(watched, p=max(watched.p, rates.difference_p(*counts)))
                asked.append((key, signature))
                starts = self._starts(key, baseline, len(compared), signature)
                pairs.append(Pair(baseline, counts, (counts,), watched=watched, starts=starts))
        verdicts: dict[CellKey, list[SignatureVerdict]] = {}
        judged = judge(pairs, self.settings.margin, len(compared))
        for (key, signature), pair, (comparison, verdict) in zip(asked, pairs, judged, strict=True):
            cell, (one, _, other, reached) = self._cells[key].statistics, pair.counts
            is_more = one * base.counted > other * cell.counted and verdict.kind != "worse"
            is_more &= rates.difference_p(one, cell.counted, other, base.counted) < LEVEL
            verdict = replace(verdict, more_trials=None)  # the row says it
            way = SignatureVerdict(signature, one, other, comparison, verdict, is_more * (base.counted - reached))
            verdicts.setdefault(key, []).append(way)
        return verdicts


def _overlap(cell: CellTrials, base: CellTrials) -> bool:
    """Whether both cells began trials in a common time; also if their times are unknown."""
    (first, last), (base_first, base_last) = cell.statistics.began, base.statistics.began
    return not (first and base_first) or (last > base_first and base_last > first)


def _same_seeds(cell: Sequence[TrialFacts], base: Sequence[TrialFacts]) -> tuple[Counts, ...]:
    """Pairs of trials of one index, which have the same seeds in a run with ``--aorta-seed``; else empty."""
    ours, theirs = ({facts.index: facts for facts in side} for side in (cell, base))
    if any(facts.run_seed is None for facts in (*cell, *base)):
        return ()
    return tuple((ours[index].is_failure, 1, theirs[index].is_failure, 1) for index in ours if index in theirs)


def _paired(
    base: CellTrials, cell: CellTrials, signature: Signature | None = None, *, ended: bool = False
) -> list[tuple[float, float]]:
    """Pair the k-th trial of the baseline at a place with the k-th of the cell: have they failed (in one way)?

    Trials of one side that ran before the other began, in an earlier run, are left out: their rate may have been
    another.

    If a start served several trials, it is one observation: the failed share of its trials before the first trial of a
    later start. Which trials these are neither depends on their outcomes nor changes later. The last start counts when
    the run has ``ended``.
    """
    by_place: list[dict[object, list[_Observation]]] = [{}, {}]
    for observations, side in zip(by_place, (base, cell), strict=True):
        for place, began, closed, share in _observations(side.stream(), signature, ended):
            observations.setdefault(place, []).append((began, closed, share))
    pairs = [
        (max(one, other), min(one, other), base_failed, cell_failed)
        for place, trials in by_place[0].items()
        for (_, one, base_failed), (_, other, cell_failed) in zip(
            *_since_both(trials, by_place[1].get(place, [])), strict=False
        )
    ]
    return [(base_failed, cell_failed) for _, _, base_failed, cell_failed in sorted(pairs)]


_Observation = tuple[str, int, float]


def _since_both(*sides: list[_Observation]) -> list[list[_Observation]]:
    """Keep the last observation before the other side began, and all later ones; all if times are unknown."""
    if not all(side and all(began for began, *_ in side) for side in sides):
        return list(sides)
    both = max(side[0][0] for side in sides)
    return [side[max(0, sum(began < both for began, *_ in side) - 1) :] for side in sides]


def _observations(
    stream: Sequence[TrialFacts], signature: Signature | None, ended: bool
) -> Iterator[tuple[object, str, int, float]]:
    """Place, begin, number of the trial that completed it, and failed share of each start, in order of their begin."""
    begun = [facts.start is not None and not facts.in_one_process for facts in stream]
    latest, members = -1, dict[int, list[int]]()
    closed: dict[int, int] = {}
    for number, facts in enumerate(stream):
        if facts.start is None or not begun[number]:
            continue
        if facts.start > latest:
            if latest >= 0:
                closed[latest] = number
            latest = facts.start
        if facts.start == latest:
            members.setdefault(latest, []).append(number)
    if ended and latest >= 0:
        closed[latest] = len(stream)

    def has_failed(number: int) -> bool:
        facts = stream[number]
        return facts.is_failure if signature is None else facts.signature == signature

    for number, facts in enumerate(stream):
        if not begun[number]:
            yield facts.place.key, facts.started_at, number, has_failed(number)
        elif facts.start in closed and members[facts.start][0] == number:
            those = members[facts.start]
            yield facts.place.key, facts.started_at, closed[facts.start], sum(map(has_failed, those)) / len(those)


def _uncompared(cell: CellStatistics, cells: Mapping[CellKey, CellStatistics], baselines: Baselines) -> Verdict:
    """The verdict on a cell without a comparison."""
    if cell.did_not_run:
        return Verdict("did not run")
    if not cell.counted and cell.count("infrastructure", "did not run"):
        return Verdict("error", "no trial says anything about the workload")
    if cell.key not in baselines.of:
        return Verdict("baseline" if cell.key in baselines.cells else "undecided")
    base = cells[baselines.of[cell.key]]
    is_alone = cell.total and base.total and not base.counted
    return Verdict("undecided", f"the baseline {base.key.cell} did not run" if is_alone else "")
