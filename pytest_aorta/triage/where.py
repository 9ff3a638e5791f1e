"""Where failures gather: on a device, a host, a rank, at a time, one behind the other.

The verdicts compare cells as if nothing else told trials apart. What else does is asked here, *within* cells, so that
cells may have different rates. What is found is no verdict on a cell, but a reason to doubt all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import expm1, log
from typing import TYPE_CHECKING, Any, Literal

from pytest_aorta.common.texts import first_names
from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.rates import Interval, holm, stratified_tails, wilson

if TYPE_CHECKING:
    import numpy as np

    _Numbers = np.ndarray[Any, np.dtype[Any]]

#: Share of the tables in which anything is said to be associated although nothing is, at most.
ASSOCIATION_LEVEL = 0.01

#: Level of doubts: of a place that runs and trends may only repeat, and of trials that depend on each other.
_SUSPICION = 0.05

#: Failures gather at a place if they are so many times as frequent there as elsewhere.
_GATHERED = 3.0

#: Of the failures, one in so many have to be at a place if variables are not to be suspected at all.
_MOST = 1.5

#: A change of the step times that matters, from the first third of a run to the last.
_SLOWER = 0.05

#: Cells ran by turns if the share of each one's trials in the first half of the run is so close to one half.
_BY_TURNS = 0.2

#: Failures, and passes, below which nothing is said of their order.
_FEWEST = 6

#: Permutations in all, and in one step. A test that is clearly not significant ends after a step.
_PERMUTATIONS, _STEP, _CLEARLY_NOT = 1999, 200, 20

Factor = Literal[
    "host", "device", "slot", "job", "rank", "order", "trial before", "trial before in its cell",
    "trial before at its place", "step times",
]  # fmt: skip

#: Those that are a place, with what is to be suspected.
PLACES: Mapping[Factor, str] = {"host": "the host", "device": "the device", "slot": "the slot", "job": "the job"}

#: Those that are the trial before.
RUNS: tuple[Factor, ...] = ("trial before in its cell", "trial before at its place", "trial before")


@dataclass(frozen=True)
class Share:
    """How many of the trials that share something have failed."""

    name: str
    failures: int
    trials: int

    @property
    def rate(self) -> float:
        return self.failures / self.trials if self.trials else 0.0

    @property
    def rate_interval(self) -> Interval:
        """Wilson, 95 %."""
        return wilson(self.failures, self.trials)


@dataclass(frozen=True)
class Association:
    """One test of whether failures have to do with something else than the cell.

    Attributes:
        factor: with what.
        value: where they gather: ``GPU 0``, ``node7``, ``rank 5``; empty for times and for the trial before.
        failures, trials: of that value.
        all_failures, all_trials: in which the factor is known.
        p: of this test, corrected for the number of values.
        p_adjusted: corrected for the number of tests (Holm).
        shares: failures by value; by thirds of the run; after a failure and after none. Of ranks the trials are all
            failures with one cause, of step times there are none.
        sentence: what it says.
        independent: of the trial before: about how many independent trials say as much as all; else ``None``.
    """

    factor: Factor
    value: str
    failures: int
    trials: int
    all_failures: int
    all_trials: int
    p: float
    p_adjusted: float = 1.0
    shares: tuple[Share, ...] = ()
    sentence: str = ""
    independent: int | None = None

    @property
    def is_significant(self) -> bool:
        return self.p_adjusted < ASSOCIATION_LEVEL

    @property
    def is_gathered(self) -> bool:
        """Whether failures are not only more frequent at this value, but hardly occur elsewhere."""
        elsewhere, trials = self.all_failures - self.failures, self.all_trials - self.trials
        if self.factor == "rank":
            return 2 * self.failures > self.all_failures
        return self.factor in PLACES and self.failures * trials >= _GATHERED * elsewhere * self.trials


@dataclass(frozen=True)
class Associations:
    """All tests of a table, those that can be made of its trials."""

    tests: tuple[Association, ...] = ()

    @property
    def found(self) -> tuple[Association, ...]:
        """Those that hold: places first, then by p."""
        held = [test for test in self.tests if test.is_significant]
        return tuple(sorted(held, key=lambda test: (test is not self.place, test.p)))

    @property
    def place(self) -> Association | None:
        """Where failures gather, so that the place is to be suspected before any variable."""
        held = [test for test in self.tests if test.is_significant and test.factor in PLACES and test.is_gathered]
        return min(held, key=lambda test: test.p, default=None)

    @property
    def runs(self) -> Association | None:
        """That failures come in runs, so that trials say less than their number."""
        held = [test for test in self.tests if test.is_significant and test.factor in RUNS]
        return min(held, key=lambda test: test.p, default=None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What holds, but for ``place``, which is a conclusion; of several forms of runs the clearest."""
        place, runs = self.place, self.runs
        kept = (test for test in self.found if test is not place and (test.factor not in RUNS or test is runs))
        return tuple(test.sentence for test in kept)


#: Of a table that nothing was asked of.
NO_ASSOCIATIONS = Associations()


def associations(cells: Sequence[CellTrials], *, differ: bool = False) -> Associations:
    """Whether failures have to do with a place, a rank, a time, or the trial before.

    ``differ``: whether a cell differs from its baseline, so that variables matter besides any place.

    All tests are conditional on how often each cell has failed. Of tables whose trials are exchangeable within their
    cells, at most the share ``ASSOCIATION_LEVEL`` has any association.

    - Places: the failures at one value beside all others, exact (the sum over cells of hypergeometric numbers),
      one-sided, corrected for the number of values (Bonferroni). Devices are compared within their host, slots within
      host and devices, jobs within host, so that each says what the wider place does not.
    - Ranks: how often one is the only cause, exact, beside all ranks being alike.
    - Order and trial before: permutations within cells, and within places where these differ.

    Trials that do not count, and what is not known of one, are left out.
    """
    trials = _in_order(cells)
    places = _places(trials, differ)
    tests = [*places, *_ranks(trials), *_in_time(trials, _unequal(places)), *_step_times(trials)]
    adjusted = holm([test.p for test in tests])
    return Associations(tuple(replace(test, p_adjusted=p) for test, p in zip(tests, adjusted, strict=True)))


def dependence(cells: Sequence[CellTrials]) -> Association | None:
    """The test of the trial before in its cell alone, where it leaves a doubt (p < 0.05).

    No difference between cells is sure then. Where failures come in runs of five, cells "differ" in half of all tables,
    and this test misses none of these; at 1 % it would miss one in fifteen.
    """
    trials = _in_order(cells)
    places = _places(trials)
    found = next(_in_time(trials, _unequal(places), RUNS[:1]), None)
    return found if found is not None and found.p < _SUSPICION else None


def _in_order(cells: Sequence[CellTrials]) -> list[TrialFacts]:
    counted = [facts for cell in cells for facts in cell.finished if facts.is_counted]
    return sorted(counted, key=lambda facts: (facts.started_at, facts.index, facts.file))


def _unequal(places: Sequence[Association]) -> tuple[Factor, ...]:
    return tuple(test.factor for test in places if test.p < _SUSPICION)


# Places.


def _values(factor: Factor, facts: TrialFacts) -> tuple[Hashable, ...]:
    place = facts.place
    match factor:
        case "host":
            return () if place.host is None else (place.host,)
        case "device":
            return tuple((place.host, device) for device in place.devices)
        case "slot":
            return () if place.slot is None else ((place.host, place.slot),)
    return () if place.job is None else (place.job,)


def _wider(factor: Factor, facts: TrialFacts) -> Hashable:
    """What a trial shares with those that it is compared with."""
    place = facts.place
    if factor == "host":
        return facts.key
    return facts.key, place.host, place.devices if factor == "slot" else ()


def _places(trials: Sequence[TrialFacts], differ: bool = False) -> list[Association]:
    return [test for factor in PLACES if (test := _place(factor, trials, differ)) is not None]


def _place(factor: Factor, trials: Sequence[TrialFacts], differ: bool) -> Association | None:
    known = [(facts, values) for facts in trials if (values := _values(factor, facts))]
    strata: dict[Hashable, list[tuple[TrialFacts, tuple[Hashable, ...]]]] = {}
    for facts, values in known:
        strata.setdefault(_wider(factor, facts), []).append((facts, values))
    tables: dict[Hashable, list[tuple[int, int, int, int]]] = {}
    for stratum in strata.values():
        failures = sum(facts.is_failure for facts, _ in stratum)
        all_here, failed_here = Counter[Hashable](), Counter[Hashable]()
        for facts, values in stratum:
            all_here.update(values)
            failed_here.update(values if facts.is_failure else ())
        for value, here in all_here.items():
            if here < len(stratum):
                failed = failed_here[value]
                tables.setdefault(value, []).append((failed, here, failures - failed, len(stratum) - here))
    if not tables:
        return None
    several = len({facts.place.host for facts, _ in known}) > 1
    alike: dict[Hashable, list[Hashable]] = {}  # values that no trial tells apart, such as both devices of a pair
    for value in tables:
        members = frozenset(index for index, (_, values) in enumerate(known) if value in values)
        alike.setdefault(members, []).append(value)
    found = [(stratified_tails(tables[values[0]])[1], values) for values in alike.values()]
    least = min(p for p, _ in found)
    p = min(1.0, len(found) * least)
    level = ASSOCIATION_LEVEL / len(found) / (len(PLACES) + 1)
    held = set(chain(*(values for each, values in found if each == least or each < level)))
    shares = _shares(known, several, factor)
    there = [facts for facts, values in known if held.intersection(values)]
    name = _together(factor, held, several)
    failures, all_failures = sum(facts.is_failure for facts in there), sum(facts.is_failure for facts, _ in known)
    test = Association(factor, name, failures, len(there), all_failures, len(known), p, shares=shares)
    return replace(test, sentence=_place_sentence(test, len(held) > 1, differ))


def _shares(
    known: Sequence[tuple[TrialFacts, tuple[Hashable, ...]]], several: bool, factor: Factor
) -> tuple[Share, ...]:
    all_here, failed_here = Counter[Hashable](), Counter[Hashable]()
    for facts, values in known:
        all_here.update(values)
        failed_here.update(values if facts.is_failure else ())
    ordered = sorted(all_here, key=_natural)
    return tuple(Share(_name(factor, value, several), failed_here[value], all_here[value]) for value in ordered)


def _natural(value: Hashable) -> tuple[object, ...]:
    return tuple(
        (isinstance(part, str), str(part).zfill(12)) for part in (value if isinstance(value, tuple) else (value,))
    )


def _name(factor: Factor, value: Any, several: bool) -> str:
    if factor in ("host", "job"):
        return str(value) if factor == "host" else f"job {value}"
    host, number = value
    return f"{'GPU' if factor == 'device' else 'slot'} {number}" + (f" of {host}" if several and host else "")


def _together(factor: Factor, values: Collection[Hashable], several: bool) -> str:
    names = first_names([_name(factor, value, several) for value in sorted(values, key=_natural)], 4)
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _place_sentence(test: Association, many: bool, differ: bool) -> str:
    where = f"{'in' if test.factor in ('job', 'slot') else 'on'} {test.value}"
    if not test.is_gathered:
        rest = f"{test.all_failures - test.failures} of {test.all_trials - test.trials}"
        return f"more failures {where} than elsewhere: {test.failures} of {test.trials} trials, {rest} ({_p(test)})"
    suspect = PLACES[test.factor] + ("s" if many else "")
    # The failures elsewhere have another cause.
    suspect += " as well" if differ or _MOST * test.failures < test.all_failures else ", not the variables"
    return (
        f"{test.failures} of {test.all_failures} failures {where}: suspect {suspect} "
        f"({test.value} ran {test.trials} of {test.all_trials} trials; {_p(test)})"
    )


def _p(test: Association) -> str:
    return "p < 0.0001" if test.p < 0.0001 else f"p = {test.p:.2g}"


# Ranks.


def _ranks(trials: Sequence[TrialFacts]) -> Iterator[Association]:
    causes = [facts.culprit for facts in trials if facts.culprit is not None and facts.culprit[1] > 1]
    if not causes:
        return
    sizes, number = Counter(size for _, size in causes), Counter(rank for rank, _ in causes)
    most = max(sizes)
    found = {
        rank: min(1.0, most * _cause_p(number[rank], {size: count for size, count in sizes.items() if size > rank}))
        for rank in number
    }
    rank = min(found, key=lambda each: (found[each], each))
    shares = tuple(Share(f"rank {each}", number[each], len(causes)) for each in range(most))
    test = Association(
        "rank", f"rank {rank}", number[rank], len(causes), len(causes), len(causes), found[rank], shares=shares
    )
    text = (
        f"{test.value} is the cause in {test.failures} of {test.all_failures} failures: look at its device, its host, "
        f"and what only it does ({_p(test)})"
    )
    yield replace(test, sentence=text)


def _cause_p(number: int, sizes: Mapping[int, int]) -> float:
    """The chance that a rank is the cause so often if all are alike: of ``sizes[n]`` failures it is one of n."""
    import numpy as np

    sums = np.ones(1)
    for size, failures in sizes.items():
        chance = np.array([1 - 1 / size, 1 / size])
        for _ in range(failures):
            sums = np.convolve(sums, chance)
    return float(sums[number:].sum())


# Order in time, and the trial before.


@dataclass(frozen=True)
class _Statistic:
    """A number of the failures less what is expected: the sum of ``linear``, and of the products of ``pairs``."""

    factor: Factor
    linear: _Numbers | None = None
    pairs: tuple[_Numbers, _Numbers] | None = None

    def of(self, residuals: _Numbers) -> _Numbers:
        """Of each row."""
        import numpy as np

        if self.linear is not None:
            found: _Numbers = np.abs(residuals @ self.linear)
            return found
        assert self.pairs is not None
        first, second = self.pairs
        products: _Numbers = np.einsum("ij,ij->i", residuals[:, first], residuals[:, second])
        return products


def _in_time(
    trials: Sequence[TrialFacts], unequal: Sequence[Factor], factors: Collection[Factor] = ("order", *RUNS)
) -> Iterator[Association]:
    """``trials`` in run order; places in ``unequal`` differ, so that only trials at the same one are exchanged."""
    failures = sum(facts.is_failure for facts in trials)
    if min(failures, len(trials) - failures) < _FEWEST or not all(facts.started_at for facts in trials):
        return
    import numpy as np

    failed = np.array([facts.is_failure for facts in trials], dtype=float)
    strata = [(facts.key, *(_values(factor, facts) for factor in unequal)) for facts in trials]
    statistics = [
        _Statistic("order", linear=np.arange(len(trials)) / (len(trials) - 1)),
        *(_Statistic(factor, pairs=pairs) for factor, pairs in _chains(trials).items()),
    ]
    statistics = [each for each in statistics if each.factor in factors]
    for statistic, p in zip(statistics, _permuted(failed, strata, statistics) if statistics else (), strict=True):
        if statistic.pairs is None:
            yield _order(trials, failed, p)
        else:
            yield _run(statistic.factor, failed, strata, statistic.pairs, p)


def _chains(trials: Sequence[TrialFacts]) -> dict[Factor, tuple[_Numbers, _Numbers]]:
    """Each trial with the one before, in three senses; where two are the same, the first."""
    import numpy as np

    def where(facts: TrialFacts) -> Hashable:
        return facts.place.host, facts.place.devices, facts.place.slot

    senses: dict[Factor, list[Hashable]] = {
        "trial before in its cell": [facts.key for facts in trials],
        "trial before": [None] * len(trials),
        "trial before at its place": [where(facts) for facts in trials],
    }
    found: dict[Factor, tuple[_Numbers, _Numbers]] = {}
    seen: set[tuple[tuple[int, int], ...]] = set()
    for factor, groups in senses.items():
        members: dict[Hashable, list[int]] = {}
        for index, group in enumerate(groups):
            members.setdefault(group, []).append(index)
        pairs = tuple(chain.from_iterable(pairwise(each) for each in members.values()))
        if pairs and pairs not in seen:
            seen.add(pairs)
            first, second = np.array(pairs).T
            found[factor] = first, second
    return found


def _centred(values: _Numbers, strata: Sequence[Hashable]) -> _Numbers:
    """Values less the mean of their stratum."""
    import numpy as np

    numbers = _numbered(strata)
    residuals: _Numbers = values - (np.bincount(numbers, values) / np.bincount(numbers))[numbers]
    return residuals


def _numbered(strata: Sequence[Hashable]) -> _Numbers:
    import numpy as np

    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(stratum, len(numbers)) for stratum in strata])


def _permuted(values: _Numbers, strata: Sequence[Hashable], statistics: Sequence[_Statistic]) -> list[float]:
    """The p value of each statistic: the share of permutations within the strata in which it is as large.

    The same numbers give the same p values. Where all of these are clearly large, a few permutations do (Besag &
    Clifford 1991, "Sequential Monte Carlo p-values").
    """
    import numpy as np

    numbers, generator = _numbered(strata), np.random.default_rng(len(values))
    grouped = np.argsort(numbers, kind="stable")
    residuals, offsets = _centred(values, strata)[grouped], numbers[grouped]
    observed = np.array([statistic.of(_centred(values, strata)[None])[0] for statistic in statistics])
    as_large, made = np.zeros(len(statistics)), 0
    while made < _PERMUTATIONS and (made == 0 or as_large.min() < _CLEARLY_NOT):
        step = min(_STEP, _PERMUTATIONS - made)
        order = np.argsort(generator.random((step, len(values))) + offsets, axis=1)
        permuted = np.empty((step, len(values)))
        permuted[:, grouped] = residuals[order]
        found = np.array([statistic.of(permuted) for statistic in statistics])
        # Equal but for rounding counts as equal.
        as_large += (found >= (observed - 1e-9 * (1 + np.abs(observed)))[:, None]).sum(axis=1)
        made += step
    return [float(p) for p in (1 + as_large) / (1 + made)]


def _order(trials: Sequence[TrialFacts], failed: _Numbers, p: float) -> Association:
    count, number = len(failed), int(failed.sum())
    thirds = [slice(part * count // 3, (part + 1) * count // 3) for part in range(3)]
    shares = tuple(
        Share(name, int(failed[third].sum()), len(failed[third]))
        for name, third in zip(("first third", "second third", "last third"), thirds, strict=True)
    )
    first, _, last = shares
    text = (
        f"the failure rate changes over the run: {first.failures} of {first.trials} in its first third, "
        f"{last.failures} of {last.trials} in its last"
    )
    test = Association("order", "", number, count, number, count, p, shares=shares)
    return replace(test, sentence=f"{text} ({_p(test)}); {_meaning(trials)}")


def _meaning(trials: Sequence[TrialFacts]) -> str:
    """What a change over the run means for the comparison of cells."""
    halves: dict[CellKey, list[bool]] = {}
    for index, facts in enumerate(trials):
        halves.setdefault(facts.key, []).append(index < len(trials) / 2)
    if all(abs(sum(first) / len(first) - 0.5) <= _BY_TURNS for first in halves.values()):
        return "no number holds for the whole run"
    return "cells ran at different times, so that a difference between them may be this change"


def _step_times(trials: Sequence[TrialFacts]) -> Iterator[Association]:
    """A change that is too small to matter has a p value of 1."""
    timed = [facts for facts in trials if facts.steps is not None]
    if len(timed) < _FEWEST or not all(facts.started_at for facts in timed):
        return
    import numpy as np

    times = np.array([log(facts.steps.median_ms) for facts in timed if facts.steps is not None])
    cells, count, third = [facts.key for facts in timed], len(timed), len(timed) // 3
    residuals = _centred(times, cells)
    change = expm1(float(residuals[-third:].mean() - residuals[:third].mean()))
    p = 1.0
    if abs(change) >= _SLOWER:
        (p,) = _permuted(times, cells, [_Statistic("step times", linear=np.arange(count) / (count - 1))])
    test = Association("step times", "", 0, count, 0, count, p)
    text = f"step times change over the run: {change:+.0%} from its first third to its last ({_p(test)})"
    yield replace(test, sentence=f"{text}; {_meaning(timed)}")


def _run(
    factor: Factor, failed: _Numbers, strata: Sequence[Hashable], pairs: tuple[_Numbers, _Numbers], p: float
) -> Association:
    import numpy as np

    first, second = pairs
    numbers = _numbered(strata)
    counts, sums = np.bincount(numbers), np.bincount(numbers, failed)
    rates = (sums / counts)[numbers]
    # Of two trials of one stratum, the second is drawn from what is left.
    left = ((sums - 1) / np.maximum(counts - 1, 1))[numbers]
    same = numbers[first] == numbers[second]
    expected = float(np.where(same, rates[first] * left[first], rates[first] * rates[second]).sum())
    both = int((failed[first] * failed[second]).sum())
    residuals = failed - rates
    spread = float((rates[first] * (1 - rates[first])).sum())
    # An estimate from residuals is too low by about one over the length of a stratum.
    correlation = float((residuals[first] * residuals[second]).sum()) / spread if spread else 0.0
    correlation = min(0.99, max(0.0, correlation + float((same / counts[numbers[first]]).mean())))
    independent = max(1, round(len(failed) * (1 - correlation) / (1 + correlation)))
    after = [Share("after a failure", both, int(failed[first].sum()))]
    after.append(Share("after none", int(failed[second].sum()) - both, len(first) - after[0].trials))
    where = factor.removeprefix("trial before")
    text = (
        f"failures come in runs: a trial failed as the one before{where.replace(' its', ' the same') or ' it'} did "
        f"{both} times, by chance it would be about {expected:.0f}"
    )
    total = int(failed.sum())
    test = Association(
        factor, "", total, len(failed), total, len(failed), p, shares=tuple(after), independent=independent
    )
    meaning = f"{len(failed)} trials say as much as about {independent} independent ones"
    return replace(test, sentence=f"{text} ({_p(test)}); {meaning}")
