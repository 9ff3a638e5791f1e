"""What could make a verdict wrong: variables that nothing reads, and what changed while trials ran."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

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
    """Whether the variables of a cell's mitigation set can have done anything.

    Attributes:
        inert: the variables that probably did nothing, in alphabetical order.
        active: the others that the set changes, in the same order.
        same_as: another cell of the same workload and environment whose trials had the same values of all watched
            variables; the baseline, if it is one of them.
        is_second_baseline: whether ``same_as`` is the baseline that the cell is compared with.
    """

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


#: Part of the tables without any change that are warned of, at most.
DRIFT_LEVEL = 0.01

#: Trials that there have to be on each side; fewer tell nothing at this level.
_FEWEST = 8

#: More trials than these have no exact test of their failures' positions.
_MOST_EXACT = 200

#: Cells ran by turns with the baseline if their parts of trials after a change differ by no more than this.
_BY_TURNS = 0.2

#: Seconds without any trial after which the host is as if none had run before.
_IDLE = 60.0

#: Cells that a warning names.
_NAMED = 5


@dataclass(frozen=True)
class _Quantity:
    """What may drift: a number of each trial.

    Attributes:
        name: for sentences.
        text: a value as shown.
        value: of a trial; ``None`` where it is not known.
        least: the smallest change that matters: a difference, or where ``relative`` a part of the smaller value.
        of_host: whether it is a condition of the host.
        settles_sec: how long trials have to run until they themselves change it no more.
        is_rate: whether a value is 1 or 0, so that their mean counts, not their median.
    """

    name: str
    value: Callable[[TrialFacts], float | None]
    text: Callable[[float], str]
    least: float
    relative: bool = False
    of_host: bool = False
    settles_sec: float = 0.0
    is_rate: bool = False

    def matters(self, one: float, other: float) -> bool:
        return abs(one - other) >= self.least * (min(abs(one), abs(other)) if self.relative else 1.0)

    def center(self, values: Sequence[float]) -> float:
        return statistics.fmean(values) if self.is_rate else statistics.median(values)


def _of_host(
    name: str, value: Callable[[HostConditions], float | None], text: Callable[[float], str], least: float, **more: Any
) -> _Quantity:
    return _Quantity(name, lambda facts: value(facts.host), text, least, of_host=True, **more)


_OF_TRIALS = (
    _Quantity(
        "failure rate",
        lambda facts: float(facts.is_failure) if facts.is_counted else None,
        "{:.0%}".format,
        0.1,
        is_rate=True,
    ),
    _Quantity(
        "step times",
        lambda facts: None if facts.steps is None else facts.steps.median_ms,
        "{:.4g} ms".format,
        0.05,
        relative=True,
    ),
)
_OF_HOSTS = (
    # An average of one minute comes within 5 % of its end in three.
    _of_host("load of the host, per CPU", lambda host: host.load, "{:.1f}".format, 0.5, settles_sec=180),
    _of_host("time waiting for a CPU", lambda host: host.cpu_pressure, "{:.0f}%".format, 25, settles_sec=30),
    _of_host("time waiting for memory", lambda host: host.memory_pressure, "{:.0f}%".format, 10, settles_sec=30),
    _of_host("clock of the processor", lambda host: host.clock_mhz, "{:.0f} MHz".format, 0.1, relative=True),
    _of_host(
        "memory available on the host",
        lambda host: host.memory_available_bytes,
        lambda number: f"{number / 2**30:.1f} GiB",
        0.33,
        relative=True,
    ),
)

#: A number of each trial that has one, in the order in which they began.
_Series = list[tuple[TrialFacts, float]]


def drift_warnings(cells: Sequence[CellTrials], families: Mapping[CellKey, Sequence[CellKey]]) -> tuple[str, ...]:
    """What has changed while the trials ran, in the baselines, and between them and the cells compared with them.

    All tests are of ranks, so that they assume no distribution; they do assume that trials are independent of each
    other. Of tables in which nothing changes, at most the part ``DRIFT_LEVEL`` is warned of, whatever the number of
    cells (Bonferroni): half of it is shared by the tests of failures and step times, half by those of the hosts.

    Args:
        cells: all of a table, with all of their trials.
        families: of each baseline, the cells that are compared with it.
    """
    trials = {cell.key: sorted(cell.finished, key=lambda facts: (facts.started_at, facts.index)) for cell in cells}
    if not families:
        return ()
    since = _busy_since([facts for found in trials.values() for facts in found])
    of_trials = DRIFT_LEVEL / 2 / (len(_OF_TRIALS) * len(families))
    of_hosts = DRIFT_LEVEL / 2 / (len(_OF_HOSTS) * (len(families) + sum(map(len, families.values()))))
    warnings: list[str] = []
    for baseline, keys in families.items():
        ours, others = trials[baseline], {key.cell: trials[key] for key in keys}
        names = Counter(facts.host.name for facts in ours)
        host = names.most_common(1)[0][0] if names else None
        for quantity in (*_OF_TRIALS, *_OF_HOSTS):
            series = _series(quantity, ours, host, since)
            if found := _drift(quantity, series, of_hosts if quantity.of_host else of_trials, others):
                warnings.append(f"{baseline.workload} {baseline.cell} drifts: {found}")
        for quantity in _OF_HOSTS:
            theirs = {name: _series(quantity, found, host, since) for name, found in others.items()}
            if unlike := _unlike(quantity, _series(quantity, ours, host, since), theirs, of_hosts):
                warnings.append(f"{baseline.workload}: {unlike} in its baseline {baseline.cell}")
    return tuple(warnings)


def _started(facts: TrialFacts) -> float | None:
    try:
        return datetime.fromisoformat(facts.started_at).timestamp()
    except ValueError:
        return None


def _busy_since(trials: Sequence[TrialFacts]) -> dict[str, float]:
    """For each file of a trial, when the first one began since when trials have run without a pause."""
    times = sorted((at, at + (facts.wall_sec or 0.0), facts.file) for facts in trials if (at := _started(facts)))
    found: dict[str, float] = {}
    begin = end = float("-inf")
    for at, until, file in times:
        if at - end > _IDLE:
            begin = at
        end = max(end, until)
        found[file] = begin
    return found


def _series(quantity: _Quantity, trials: Sequence[TrialFacts], host: str | None, since: Mapping[str, float]) -> _Series:
    """Conditions of one host only, and without the time in which the trials themselves change them."""
    found = []
    for facts in trials:
        value = quantity.value(facts)
        if value is not None and quantity.of_host:
            at = _started(facts)
            if facts.host.name != host or at is None or at - since[facts.file] < quantity.settles_sec:
                continue
        if value is not None:
            found.append((facts, float(value)))
    return found


def _drift(
    quantity: _Quantity, series: _Series, level: float, others: Mapping[str, Sequence[TrialFacts]]
) -> str | None:
    """A change over the trials of a baseline in words, and what it means for ``others`` that are compared with it."""
    values = [value for _, value in series]
    if len(values) < _FEWEST:
        return None
    third = len(values) // 3
    first, last = quantity.center(values[:third]), quantity.center(values[-third:])
    # Looked at first, because importing scipy takes longer than all of this.
    if not quantity.matters(first, last) or (failure_trend_p(values) if quantity.is_rate else trend_p(values)) >= level:
        return None
    begin = series[_change_point(values)][0]
    text = (
        f"{quantity.name} {quantity.text(first)} in the first third of {len(values)} trials, {quantity.text(last)} in "
        f"the last, since about trial {begin.index} ({begin.started_at[:19].replace('T', ' ')} UTC)"
    )
    ours = _part_after(begin, [facts for facts, _ in series])
    unlike = [name for name, trials in others.items() if trials and abs(_part_after(begin, trials) - ours) > _BY_TURNS]
    if unlike:
        return (
            f"{text}; {_names(unlike)} ran at other times, so that a difference from this baseline may be this change"
        )
    fair = "all cells ran by turns, so that comparisons are fair, but " if any(others.values()) else ""
    return f"{text}; {fair}no number holds for the whole run"


def _part_after(begin: TrialFacts, trials: Sequence[TrialFacts]) -> float:
    return sum(facts.started_at >= begin.started_at for facts in trials) / len(trials)


def _unlike(quantity: _Quantity, series: _Series, others: Mapping[str, _Series], level: float) -> str | None:
    """The cells that ran under other conditions than their baseline, in words (Mann-Whitney test)."""
    if len(series) < _FEWEST:
        return None
    values = [value for _, value in series]
    ours = quantity.center(values)
    unlike = []
    for name, other in others.items():
        theirs = [value for _, value in other]
        if len(theirs) >= _FEWEST and quantity.matters(ours, quantity.center(theirs)):
            from scipy.stats import mannwhitneyu

            if mannwhitneyu(theirs, values).pvalue < level:
                unlike.append(f"{quantity.text(quantity.center(theirs))} in {name}")
    return f"{quantity.name} {_names(unlike)}, but {quantity.text(ours)}" if unlike else None


def trend_p(values: Sequence[float]) -> float:
    """Of "no trend": Mann-Kendall test of numbers in run order (Mann 1945, Kendall's tau-b)."""
    from scipy.stats import kendalltau

    return 1.0 if min(values) == max(values) else float(kendalltau(range(len(values)), values).pvalue)


def failure_trend_p(failed: Sequence[float]) -> float:
    """Of "failures gather at no end of the run": Mann-Whitney test (1947) of the positions of the failures."""
    late = [index for index, one in enumerate(failed) if one]
    early = [index for index, one in enumerate(failed) if not one]
    if not late or not early:
        return 1.0
    from scipy.stats import mannwhitneyu

    found = mannwhitneyu(late, early, method="exact" if len(failed) <= _MOST_EXACT else "asymptotic")
    return min(1.0, float(found.pvalue))


def _change_point(values: Sequence[float]) -> int:
    """The first value after a change: where the sum of the ranks is farthest from what it would be without one.

    Pettitt 1979, "A Non-Parametric Approach to the Change-Point Problem".
    """
    import numpy as np
    from scipy.stats import rankdata

    distances = np.cumsum(rankdata(values) - (len(values) + 1) / 2)[:-1]
    return int(np.argmax(np.abs(distances))) + 1


def _names(names: Sequence[str]) -> str:
    shown = first_names(names, _NAMED)
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
