"""Whether anything but the mitigations has changed while the trials ran: rates, speed, the host.

All tests are of ranks, so that they assume no distribution; they do assume that trials are independent of each other.
Of tables in which nothing changes, at most the part ``LEVEL`` is warned of, whatever the number of cells (Bonferroni):
half of it is shared by the tests of failures and step times of the baselines, half by those of the hosts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_aorta.common.texts import first_names
from pytest_aorta.triage.baselines import Baselines
from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.checks.host_conditions import CONDITIONS, Condition, busy_since, main_host, started
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.statistics.trend import failure_trend, trend

#: Part of the tables without any change that are warned of, at most.
LEVEL = 0.01

#: Trials that there have to be on each side; fewer tell nothing at this level.
_FEWEST = 8

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


def drift_warnings(cells: Sequence[CellTrials], baselines: Baselines) -> tuple[str, ...]:
    """What has changed while the trials ran, in the baselines, and between them and the cells compared with them.

    ``cells``: all of a table, with all of their trials. One sentence per change.
    """
    trials = {cell.key: sorted(cell.finished, key=lambda facts: (facts.started_at, facts.index)) for cell in cells}
    compared = {
        base: [key for key in trials if baselines.of.get(key) == base] for base in trials if base in baselines.cells
    }
    if not compared:
        return ()
    since = busy_since([facts for found in trials.values() for facts in found])
    of_trials = LEVEL / 2 / (2 * len(compared))
    of_hosts = LEVEL / 2 / (len(CONDITIONS) * (len(compared) + sum(map(len, compared.values()))))
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
    """What is known of one host, without the time in which the trials themselves change it."""
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
    """A change over the trials of a baseline in words, and what it means for ``others`` that are compared with it."""
    if len(series.values) < _FEWEST or not series.matters(*_thirds(series)):
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
    """The failure rate, or the median, of the first and of the last third."""
    center = statistics.fmean if series.kind == "failures" else statistics.median
    third = len(series.values) // 3
    return center(series.values[:third]), center(series.values[-third:])


def _part_after(begin: TrialFacts, trials: Sequence[TrialFacts]) -> float:
    return sum(facts.started_at >= begin.started_at for facts in trials) / len(trials)


def _unlike(series: _Series, others: Mapping[str, _Series], level: float) -> str | None:
    """The cells that ran under other conditions than their baseline, in words (Mann-Whitney test)."""
    if len(series.values) < _FEWEST:
        return None
    ours = statistics.median(series.values)
    unlike = {}
    for name, other in others.items():
        if len(other.values) < _FEWEST or not series.matters(ours, theirs := statistics.median(other.values)):
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
