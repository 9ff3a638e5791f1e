"""What could make a verdict wrong: variables that nothing reads, and what changed while trials ran."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import fmean, median
from typing import Literal

from pytest_aorta.common.texts import first_names
from pytest_aorta.probe.variables import REDACTED
from pytest_aorta.triage.cells import CellStatistics, CellTrials
from pytest_aorta.triage.facts import CellKey, HostConditions, TrialFacts, WatchedVariables

Reason = Literal["same value", "not named"]

_MISSING = object()

_TEXTS: dict[Reason, str] = {
    "same value": "has this value without it as well",
    "not named": "is named by no loaded library or imported source",
}


@dataclass(frozen=True)
class InertVariable:
    name: str
    reason: Reason

    @property
    def text(self) -> str:
        """``DISABLE_TF32 is named by no loaded library or imported source``."""
        return f"{self.name} {_TEXTS[self.reason]}"


@dataclass(frozen=True)
class MitigationEffect:
    """Whether the variables of a cell's mitigation set can have done anything."""

    mitigations: tuple[str, ...]
    inert: tuple[InertVariable, ...] = ()
    active: tuple[str, ...] = ()
    same_as: CellKey | None = None
    is_second_baseline: bool = False

    @property
    def is_inert(self) -> bool:
        """Whether none of its variables seems to do anything."""
        return self.is_second_baseline or (bool(self.inert) and not self.active)

    @property
    def reason(self) -> str:
        """Of ``inert? (reason)``, in a few words; empty where it is not ``is_inert``."""
        if self.is_second_baseline and self.same_as is not None:
            return f"same variables as {self.same_as.cell}"
        if not self.is_inert:
            return ""
        kinds = {variable.reason for variable in self.inert}
        return {
            frozenset({"same value"}): "set to this value already",
            frozenset({"not named"}): "named by nothing that is loaded",
        }.get(frozenset(kinds), "set already, or named by nothing that is loaded")

    @property
    def sentences(self) -> tuple[str, ...]:
        """One per inert variable, and one on an equal cell: ``tf32_off: DISABLE_TF32 is named by no ...``."""
        label = ",".join(self.mitigations)
        found = [f"{label}: {variable.text}" for variable in self.inert]
        if self.same_as is not None:
            found.append(f"{label}: all variables have the values that they have in {self.same_as.cell}")
        return tuple(found)


def effects(
    cells: Mapping[CellKey, CellStatistics], baselines: Mapping[CellKey, CellKey]
) -> dict[CellKey, MitigationEffect]:
    """The effect of each cell that is compared with a baseline.

    A variable is the mitigation set's if the cell sets it, and the baseline's set in the same environment does not set
    it to the same value: variables of the environment and extra ones are in both. Only what all trials of a cell agree
    on is said, and nothing of values that are secret or were not seen.

    - ``same value``: its trials had the value that those of the baseline's set had; where these are not known, the one
      that was set around pytest.
    - ``not named``: see ``probe.named_variables``.
    """
    alike: dict[tuple[CellKey, str], list[CellStatistics]] = {}
    for cell in cells.values():
        alike.setdefault(_all_but_mitigations(cell), []).append(cell)
    return {
        key: _effect(cells[key], cells[base], alike[_all_but_mitigations(cells[key])])
        for key, base in baselines.items()
    }


def _all_but_mitigations(cell: CellStatistics) -> tuple[CellKey, str]:
    return replace(cell.key, cell=""), cell.environment


def _effect(cell: CellStatistics, base: CellStatistics, here: Sequence[CellStatistics]) -> MitigationEffect:
    reference = next((other for other in here if other.mitigations == base.mitigations), None)
    if reference is None or reference is cell:
        return MitigationEffect(cell.mitigations)
    before = dict(reference.variables.overlay)
    changed = [(name, value) for name, value in cell.variables.overlay if before.get(name, _MISSING) != value]
    reasons = {name: _why_inert(cell.variables, name, value, reference.variables) for name, value in changed}
    equal = next((other for other in [reference, *here] if other is not cell and _are_equal(other, cell)), None)
    return MitigationEffect(
        cell.mitigations,
        inert=tuple(InertVariable(name, reason) for name, reason in reasons.items() if reason is not None),
        active=tuple(name for name, reason in reasons.items() if reason is None),
        same_as=None if equal is None else equal.key,
        is_second_baseline=equal is base,
    )


def _why_inert(own: WatchedVariables, name: str, value: str, before: WatchedVariables) -> Reason | None:
    value = dict(own.resolved).get(name) or value
    without = dict(before.resolved) if before.resolved else dict(own.ambient)
    if value != REDACTED and without.get(name) == value:
        return "same value"
    return "not named" if own.unnamed is not None and name in own.unnamed else None


def _are_equal(one: CellStatistics, other: CellStatistics) -> bool:
    watched = one.variables.watched
    if not watched or watched != other.variables.watched:
        return False
    return one.variables.resolved == other.variables.resolved and len(one.variables.resolved) == len(watched)


#: Seconds without any trial after which the host is as if none had run before.
_IDLE = 60.0


@dataclass(frozen=True)
class Condition:
    """One of the facts about a host.

    Attributes:
        name: in words.
        value: of a trial; ``None`` where it is not known.
        text: of a value.
        least: the smallest change that matters: a difference, or where ``relative`` a part of the smaller value.
        settles_sec: how long trials have to run until they themselves change it no more.
    """

    name: str
    value: Callable[[HostConditions], float | None]
    text: Callable[[float], str]
    least: float
    relative: bool = False
    settles_sec: float = 0.0

    def matters(self, one: float, other: float) -> bool:
        return abs(one - other) >= self.least * (min(abs(one), abs(other)) if self.relative else 1.0)


CONDITIONS = (
    # An average of one minute comes within 5 % of its end in three.
    Condition("load of the host, per CPU", lambda host: host.load, "{:.1f}".format, 0.5, settles_sec=180),
    Condition("time waiting for a CPU", lambda host: host.cpu_pressure, "{:.0f}%".format, 25, settles_sec=30),
    Condition("time waiting for memory", lambda host: host.memory_pressure, "{:.0f}%".format, 10, settles_sec=30),
    Condition("clock of the processor", lambda host: host.clock_mhz, "{:.0f} MHz".format, 0.1, relative=True),
    Condition(
        "memory available on the host",
        lambda host: host.memory_available_bytes,
        lambda number: f"{number / 2**30:.1f} GiB",
        0.33,
        relative=True,
    ),
)


def started(facts: TrialFacts) -> float | None:
    """When a trial began, in seconds of ``time.time()``; ``None`` where its record does not say."""
    try:
        return datetime.fromisoformat(facts.started_at).timestamp()
    except ValueError:
        return None


def busy_since(trials: Sequence[TrialFacts]) -> dict[str, float]:
    times = sorted((at, at + (facts.wall_sec or 0.0), facts.file) for facts in trials if (at := started(facts)))
    found: dict[str, float] = {}
    begin = end = float("-inf")
    for at, until, file in times:
        if at - end > _IDLE:
            begin = at
        end = max(end, until)
        found[file] = begin
    return found


def main_host(trials: Sequence[TrialFacts]) -> str | None:
    names = Counter(facts.host.name for facts in trials)
    return names.most_common(1)[0][0] if names else None


# Fewer cannot give a p value that would mean anything: three values have six orders, two of them monotone.
_FEWEST = 6
_MOST_EXACT = 200


@dataclass(frozen=True)
class Trend:
    """A change over run order.

    ``tau`` is from -1 (always falling) over 0 (no order) to 1 (always rising), ``p`` the two-sided p value of "no
    trend"; ``first`` and ``last`` are the median (of failures: the rate) of the first and of the last third of the
    run.
    """

    tau: float
    p: float
    first: float
    last: float


def trend(values: Sequence[float]) -> Trend | None:
    """Mann-Kendall test of numbers in run order (Mann 1945, Kendall's tau-b); None of fewer than six or of equal ones.

    Independent of the shape of the distribution, and of a monotone change of scale; single outliers hardly count.
    """
    if len(values) < _FEWEST or min(values) == max(values):
        return None
    from scipy.stats import kendalltau

    result = kendalltau(range(len(values)), values)
    third = len(values) // 3
    return Trend(float(result.statistic), float(result.pvalue), median(values[:third]), median(values[-third:]))


def failure_trend(failed: Sequence[bool]) -> Trend | None:
    """Whether failures gather at one end of the run; None of fewer than six trials, or where all ended alike.

    Mann-Whitney test (1947) of the positions of the failures against those of the others: exact up to 200 trials.
    ``tau`` is the rank-biserial correlation, 1 where all failures come after all others.
    """
    late = [index for index, one in enumerate(failed) if one]
    early = [index for index, one in enumerate(failed) if not one]
    if len(failed) < _FEWEST or not late or not early:
        return None
    from scipy.stats import mannwhitneyu

    result = mannwhitneyu(late, early, method="exact" if len(failed) <= _MOST_EXACT else "asymptotic")
    tau = 2 * float(result.statistic) / (len(late) * len(early)) - 1
    third = len(failed) // 3
    return Trend(tau, min(1.0, float(result.pvalue)), fmean(failed[:third]), fmean(failed[-third:]))


#: Part of the tables without any change that are warned of, at most.
DRIFT_LEVEL = 0.01

#: Trials that there have to be on each side; fewer tell nothing at this level.
_FEWEST_drift = 8

#: The smallest changes that matter: of the failure rate, and of the step time as a part of itself.
_LEAST_RATE = 0.1
_LEAST_STEPS = 0.05

#: Cells ran by turns with the baseline if their parts of trials after a change differ by no more than this.
_BY_TURNS = 0.2

#: Cells that a warning names.
_NAMED = 5


@dataclass(frozen=True)
class _Series:
    """A value per trial, in the order in which they began."""

    name: str
    trials: list[TrialFacts]
    values: list[float]
    text: Callable[[float], str]
    matters: Callable[[float, float], bool]
    kind: Literal["failures", "times", "host"]


def drift_warnings(cells: Sequence[CellTrials], families: Mapping[CellKey, Sequence[CellKey]]) -> tuple[str, ...]:
    """What has changed while the trials ran, in the baselines, and between them and the cells compared with them.

    ``cells``: all of a table, with all of their trials. One sentence per change.
    """
    trials = {cell.key: sorted(cell.finished, key=lambda facts: (facts.started_at, facts.index)) for cell in cells}
    compared = {base: keys for base, keys in families.items() if base in trials}
    if not compared:
        return ()
    since = busy_since([facts for found in trials.values() for facts in found])
    of_trials = DRIFT_LEVEL / 2 / (2 * len(compared))
    of_hosts = DRIFT_LEVEL / 2 / (len(CONDITIONS) * (len(compared) + sum(map(len, compared.values()))))
    warnings: list[str] = []
    for baseline, keys in compared.items():
        ours, others = trials[baseline], {key.cell: trials[key] for key in keys}
        hosts = [(condition, _of_host(condition, ours, main_host(ours), since)) for condition in CONDITIONS]
        for series in (_failures(ours), _steps(ours), *(series for _, series in hosts)):
            found = _drift(series, of_hosts if series.kind == "host" else of_trials, others)
            warnings += [f"{baseline.workload} {baseline.cell} drifts: {found}"] if found else []
        for condition, series in hosts:
            theirs = {name: _of_host(condition, found, main_host(ours), since) for name, found in others.items()}
            found = _unlike(series, theirs, of_hosts)
            warnings += [f"{baseline.workload}: {found} in its baseline {baseline.cell}"] if found else []
    return tuple(warnings)


def _failures(trials: Sequence[TrialFacts]) -> _Series:
    counted = [facts for facts in trials if facts.is_counted]
    values = [float(facts.is_failure) for facts in counted]
    return _Series("failure rate", counted, values, "{:.0%}".format, _differ_by(_LEAST_RATE), "failures")


def _steps(trials: Sequence[TrialFacts]) -> _Series:
    measured = [(facts, facts.steps.median_ms) for facts in trials if facts.steps is not None]
    least = _differ_by(_LEAST_STEPS, relative=True)
    return _Series(
        "step times", [f for f, _ in measured], [ms for _, ms in measured], "{:.4g} ms".format, least, "times"
    )


def _of_host(
    condition: Condition, trials: Sequence[TrialFacts], host: str | None, since: Mapping[str, float]
) -> _Series:
    known = [
        (facts, value)
        for facts in trials
        if facts.host.name == host
        and (value := condition.value(facts.host)) is not None
        and (at := started(facts)) is not None
        and at - since[facts.file] >= condition.settles_sec
    ]
    values = [float(value) for _, value in known]
    return _Series(condition.name, [f for f, _ in known], values, condition.text, condition.matters, "host")


def _differ_by(least: float, *, relative: bool = False) -> Callable[[float, float], bool]:
    return lambda one, other: abs(one - other) >= least * (min(one, other) if relative else 1.0)


def _drift(series: _Series, level: float, others: Mapping[str, Sequence[TrialFacts]]) -> str | None:
    if len(series.values) < _FEWEST_drift or not series.matters(*_thirds(series)):
        return None  # before scipy is imported, which takes longer than all of this
    failures = series.kind == "failures"
    found = failure_trend([value > 0 for value in series.values]) if failures else trend(series.values)
    if found is None or found.p >= level:
        return None
    first, last = map(series.text, _thirds(series))
    begin = series.trials[_change_point(series.values)]
    text = (
        f"{series.name} {first} in the first third of {len(series.values)} trials, {last} in the last, "
        f"since about trial {begin.index} ({begin.started_at[:19].replace('T', ' ')} UTC)"
    )
    ours = _part_after(begin, series.trials)
    unlike = [name for name, trials in others.items() if trials and abs(_part_after(begin, trials) - ours) > _BY_TURNS]
    if unlike:
        return (
            f"{text}; {_names(unlike)} ran at other times, so that a difference from this baseline may be this change"
        )
    fair = "all cells ran by turns, so that comparisons are fair, but " if any(others.values()) else ""
    return f"{text}; {fair}no number holds for the whole run"


def _thirds(series: _Series) -> tuple[float, float]:
    center = statistics.fmean if series.kind == "failures" else statistics.median
    third = len(series.values) // 3
    return center(series.values[:third]), center(series.values[-third:])


def _part_after(begin: TrialFacts, trials: Sequence[TrialFacts]) -> float:
    return sum(facts.started_at >= begin.started_at for facts in trials) / len(trials)


def _unlike(series: _Series, others: Mapping[str, _Series], level: float) -> str | None:
    if len(series.values) < _FEWEST_drift:
        return None
    ours = statistics.median(series.values)
    unlike = {}
    for name, other in others.items():
        if len(other.values) < _FEWEST_drift or not series.matters(ours, theirs := statistics.median(other.values)):
            continue
        from scipy.stats import mannwhitneyu

        if mannwhitneyu(other.values, series.values).pvalue < level:
            unlike[name] = theirs
    if not unlike:
        return None
    named = _names([f"{series.text(value)} in {name}" for name, value in unlike.items()])
    return f"{series.name} {named}, but {series.text(ours)}"


def _change_point(values: Sequence[float]) -> int:
    """The first value after a change: where the sum of the ranks is farthest from what it would be without one.

    Pettitt 1979, "A Non-Parametric Approach to the Change-Point Problem".
    """
    from scipy.stats import rankdata

    ranks = [float(rank) for rank in rankdata(values)]
    mean = (len(values) + 1) / 2
    distance, farthest, at = 0.0, -1.0, 1
    for index, rank in enumerate(ranks[:-1], start=1):
        distance += rank - mean
        if abs(distance) > farthest:
            farthest, at = abs(distance), index
    return at


def _names(names: Sequence[str]) -> str:
    shown = first_names(names, _NAMED)
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
