"""What could make a verdict wrong: variables that nothing reads, and what changed while trials ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isnan
from statistics import fmean
from typing import Literal

from pytest_aorta.common.texts import first_names
from pytest_aorta.probe.variables import REDACTED
from pytest_aorta.triage.cells import CellStatistics, CellTrials
from pytest_aorta.triage.facts import CellKey, TrialFacts, WatchedVariables

Reason = Literal["same value", "not named"]

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
        inert: variables that probably did nothing, in alphabetical order.
        active: the others that the set changes, in the same order.
        same_as: another cell of the same workload and environment with the same values of all watched variables; the
            baseline, if it is one of them.
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
        match sorted({variable.reason for variable in self.inert}) if self.is_inert else None:
            case None:
                return ""
            case ["same value"]:
                return "set to this value already"
            case ["not named"]:
                return "named by nothing that is loaded"
        return "set already, or named by nothing that is loaded"

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
    alike: dict[tuple[object, str], list[CellStatistics]] = {}
    for cell in cells.values():
        alike.setdefault((cell.key.group(), cell.environment), []).append(cell)
    return {
        key: _effect(cells[key], cells[base], alike[key.group(), cells[key].environment])
        for key, base in baselines.items()
    }


def _effect(cell: CellStatistics, base: CellStatistics, here: Sequence[CellStatistics]) -> MitigationEffect:
    reference = next((other for other in here if other.mitigations == base.mitigations), None)
    if reference is None or reference is cell:
        return MitigationEffect(cell.mitigations)
    before = dict(reference.variables.overlay)
    changed = [(name, value) for name, value in cell.variables.overlay if before.get(name) != value]
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
    without = dict(before.resolved or own.ambient)
    if value != REDACTED and without.get(name) == value:
        return "same value"
    return "not named" if own.unnamed is not None and name in own.unnamed else None


def _are_equal(one: CellStatistics, other: CellStatistics) -> bool:
    ours, theirs = one.variables, other.variables
    if not ours.watched or ours.watched != theirs.watched:
        return False
    return ours.resolved == theirs.resolved and len(ours.resolved) == len(ours.watched)


#: Share of the tables without any change that are warned of, at most.
DRIFT_LEVEL = 0.01

#: Trials that there have to be on each side; fewer tell nothing at this level.
_FEWEST = 8

#: Cells ran by turns with the baseline if their shares of trials after a change differ by no more than this.
_BY_TURNS = 0.2


@dataclass(frozen=True)
class _Quantity:
    """A number of each trial that may drift; ``None`` where it is not known.

    ``least`` is the smallest change that matters: a difference, or where ``relative`` a share of the smaller value.
    ``of_host``: a condition of the host, which trials themselves change until they have run for ``settles_sec``.
    """

    name: str
    value: Callable[[TrialFacts], float | None]
    text: Callable[[float], str]
    least: float
    relative: bool = False
    of_host: bool = True
    settles_sec: float = 0.0

    def matters(self, one: float, other: float) -> bool:
        return abs(one - other) >= self.least * (min(abs(one), abs(other)) if self.relative else 1.0)


_QUANTITIES = (
    _Quantity("failure rate", lambda facts: float(facts.is_failure) if facts.is_counted else None,
              "{:.0%}".format, 0.1, of_host=False),
    _Quantity("step times", lambda facts: None if facts.steps is None else facts.steps.median_ms,
              "{:.4g} ms".format, 0.05, relative=True, of_host=False),
    # An average of one minute comes within 5 % of its end in three.
    _Quantity("load of the host, per CPU", lambda facts: facts.host.load, "{:.1f}".format, 0.5, settles_sec=180),
    _Quantity("time waiting for a CPU", lambda facts: facts.host.cpu_pressure, "{:.0f}%".format, 25, settles_sec=30),
    _Quantity("time waiting for memory", lambda facts: facts.host.memory_pressure,
              "{:.0f}%".format, 10, settles_sec=30),
    _Quantity("clock of the processor", lambda facts: facts.host.clock_mhz, "{:.0f} MHz".format, 0.1, relative=True),
    _Quantity("memory available on the host", lambda facts: facts.host.memory_available_bytes,
              lambda number: f"{number / 2**30:.1f} GiB", 0.33, relative=True),
)  # fmt: skip


def drift_warnings(cells: Sequence[CellTrials], families: Mapping[CellKey, Sequence[CellKey]]) -> tuple[str, ...]:
    """What has changed while the trials ran: in the baselines, and between them and the cells compared with them.

    All tests are one test of association of ranks, Kendall's tau-b, so that they assume no distribution; they do
    assume that trials are independent. Of tables in which nothing changes, at most the share ``DRIFT_LEVEL`` is warned
    of, whatever the number of cells (Bonferroni): one half is for failures and step times, one for the hosts.

    Args:
        cells: all of a table, with all of their trials.
        families: of each baseline, the cells that are compared with it.
    """
    trials = {cell.key: sorted(cell.finished, key=lambda facts: (facts.started_at, facts.index)) for cell in cells}
    begin = min((at for found in trials.values() for facts in found if (at := _started(facts))), default=0.0)
    of_trials = sum(not quantity.of_host for quantity in _QUANTITIES) * len(families)
    of_hosts = sum(quantity.of_host for quantity in _QUANTITIES) * (len(families) + sum(map(len, families.values())))
    warnings = []
    for baseline, keys in families.items():
        ours, others = trials[baseline], {key.cell: trials[key] for key in keys}
        host = next(iter(Counter(facts.host.name for facts in ours).most_common(1)), (None,))[0]
        for quantity in _QUANTITIES:
            series = _series(quantity, ours, host, begin)
            if len(series) < _FEWEST:
                continue
            level = DRIFT_LEVEL / 2 / (of_hosts if quantity.of_host else of_trials)
            if drift := _drift(quantity, series, others, level):
                warnings.append(f"{baseline.workload} {baseline.cell} drifts: {drift}")
            if quantity.of_host:
                theirs = {name: _series(quantity, found, host, begin) for name, found in others.items()}
                if unlike := _unlike(quantity, series, theirs, level):
                    warnings.append(f"{baseline.workload}: {unlike} in its baseline {baseline.cell}")
    return tuple(warnings)


#: A number of each trial that has one, in the order in which they began.
_Series = list[tuple[TrialFacts, float]]


def _series(quantity: _Quantity, trials: Sequence[TrialFacts], host: str | None, begin: float) -> _Series:
    """Conditions are those of one host, and without the time in which the trials themselves change them."""
    found = [(facts, float(value)) for facts in trials if (value := quantity.value(facts)) is not None]
    if not quantity.of_host:
        return found
    settled = begin + quantity.settles_sec
    return [(facts, value) for facts, value in found if facts.host.name == host and _started(facts) >= settled]


def _started(facts: TrialFacts) -> float:
    try:
        return datetime.fromisoformat(facts.started_at).timestamp()
    except ValueError:
        return 0.0


def _drift(quantity: _Quantity, series: _Series, others: Mapping[str, Sequence[TrialFacts]], level: float) -> str:
    """A change over the trials of a baseline, and what it means for ``others`` that are compared with it."""
    values = [value for _, value in series]
    third = len(values) // 3
    first, last = fmean(values[:third]), fmean(values[-third:])
    if not quantity.matters(first, last) or _p(range(len(values)), values) >= level:
        return ""
    begin = series[_change_point(values)][0]
    text = (
        f"{quantity.name} {quantity.text(first)} in the first third of {len(values)} trials, {quantity.text(last)} in "
        f"the last, since about trial {begin.index} ({begin.started_at[:19].replace('T', ' ')} UTC)"
    )
    ours = _share_after(begin, [facts for facts, _ in series])
    unlike = [name for name, trials in others.items() if trials and abs(_share_after(begin, trials) - ours) > _BY_TURNS]
    if unlike:
        return (
            f"{text}; {_names(unlike)} ran at other times, so that a difference from this baseline may be this change"
        )
    fair = "all cells ran by turns, so that comparisons are fair, but " if any(others.values()) else ""
    return f"{text}; {fair}no number holds for the whole run"


def _share_after(begin: TrialFacts, trials: Sequence[TrialFacts]) -> float:
    return sum(facts.started_at >= begin.started_at for facts in trials) / len(trials)


def _unlike(quantity: _Quantity, series: _Series, others: Mapping[str, _Series], level: float) -> str:
    """The cells that ran under other conditions than their baseline."""
    values = [value for _, value in series]
    unlike = []
    for name, other in others.items():
        theirs = [value for _, value in other]
        if len(theirs) < _FEWEST or not quantity.matters(fmean(values), fmean(theirs)):
            continue
        if _p([0] * len(values) + [1] * len(theirs), values + theirs) < level:
            unlike.append(f"{quantity.text(fmean(theirs))} in {name}")
    return f"{quantity.name} {_names(unlike)}, but {quantity.text(fmean(values))}" if unlike else ""


def _p(one: Sequence[float], other: Sequence[float]) -> float:
    from scipy.stats import kendalltau  # which takes a second, so only for changes that matter

    p = float(kendalltau(one, other).pvalue)
    return 1.0 if isnan(p) else p


def _change_point(values: Sequence[float]) -> int:
    """The first value after a change (Pettitt 1979): where the sum of the ranks is farthest from its expectation."""
    import numpy as np
    from scipy.stats import rankdata

    distances = np.cumsum(rankdata(values) - (len(values) + 1) / 2)[:-1]
    return int(np.argmax(np.abs(distances))) + 1


def _names(names: Sequence[str]) -> str:
    shown = first_names(names, 5)
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
