"""Where failures gather: on a device, a host, a rank, in a start, at a time, after another failure; and bad nodes.

The verdicts compare cells as if nothing else told trials apart. These tests ask whether anything else does, *within*
cells, so cells may have different rates. A result is no verdict on a cell, but a reason to doubt all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from math import comb, exp, expm1, log
from typing import TYPE_CHECKING, Any, Literal

from pytest_aorta.common.texts import first_names, join_names
from pytest_aorta.triage import SPEED_MARGIN
from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.draws import shared_starts
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.rates import Counts, Interval, holm, p_text, stratified_tails, wilson
from pytest_aorta.triage.rounds import analyse_rounds, in_order
from pytest_aorta.triage.speed import within_places

if TYPE_CHECKING:
    import numpy as np

    _Numbers = np.ndarray[Any, np.dtype[Any]]

    #: One test statistic per row of residuals.
    _Statistic = Callable[[_Numbers], Any]

#: Chance that any association is claimed in a table without one, at most.
ASSOCIATION_LEVEL = 0.01

#: Level of doubts: about places that may explain runs and trends, and about trials that depend on each other.
_SUSPICION = 0.05

#: Failures gather at a place if they are at least so many times as frequent there as elsewhere.
_GATHERED = 3.0

#: Variables are not suspected if all failures are at most so many times the failures at the place.
_MOST = 1.5

#: Smaller changes of step times, from the first third of a run to the last, do not matter.
_SLOWER = 0.05

#: Cells ran by turns if the share of each cell's trials in the first half of the run is this close to one half.
_BY_TURNS = 0.2

#: With fewer failures, or passes, their order is not tested.
_FEWEST = 5

#: A sentence names at most so many starts or seeds.
_MOST_NAMES = 4

#: Permutations in all, and in one step; with this many larger statistics, a test ends early.
_PERMUTATIONS, _STEP, _CLEARLY_NOT = 1999, 200, 20

Factor = Literal[
    "host", "device", "slot", "job", "start", "hash seed", "seed", "first trial", "rank", "order",
    "trial before", "trial before in its cell",
    "trial before at its place", "step times", "hardware",
]  # fmt: skip

#: Factors that are places, with their names in sentences.
PLACES: Mapping[Factor, str] = {"host": "the host", "device": "the device", "slot": "the slot", "job": "the job"}

#: Factors drawn at the start of a process, the most specific first.
SEEDS: tuple[Factor, ...] = ("seed", "hash seed", "start")

#: Factors about the trial before.
RUNS: tuple[Factor, ...] = ("trial before in its cell", "trial before at its place", "trial before")


@dataclass(frozen=True)
class Share:
    """Failures of the trials that share one value of a factor.

    ``expected``: number of failures by the rates of their cells alone, for comparison.
    """

    name: str
    failures: int
    trials: int
    expected: float | None = None

    @property
    def rate(self) -> float:
        return self.failures / self.trials if self.trials else 0.0

    @property
    def rate_interval(self) -> Interval:
        """Wilson, 95 %."""
        return wilson(self.failures, self.trials)


@dataclass(frozen=True)
class Association:
    """One test of whether failures depend on something else than the cell.

    Attributes:
        value: where they gather: ``GPU 0``, ``node7``, ``rank 5``; empty for times and for the trial before.
        failures, trials: at that value; ``all_failures`` and ``all_trials``: wherever the factor is known.
        p: of this test, corrected for the number of values; ``p_adjusted`` also for the number of tests (Holm).
        shares: failures by value, by thirds of the run, or after a failure and after none. For ranks, the trials are
            all failures with a known cause. Empty for step times.
        independent: for the trial before: as many independent trials would say about as much; else ``None``.
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
        """Whether failures hardly occur at other values, rather than just less often."""
        elsewhere, trials = self.all_failures - self.failures, self.all_trials - self.trials
        if self.factor == "rank":
            return 2 * self.failures > self.all_failures
        return self.factor in PLACES and self.failures * trials >= _GATHERED * elsewhere * self.trials


@dataclass(frozen=True)
class Associations:
    """All tests that the trials of a table allow."""

    tests: tuple[Association, ...] = ()

    @property
    def significant(self) -> tuple[Association, ...]:
        """Significant tests: the bad place first, then by p."""
        held = [test for test in self.tests if test.is_significant]
        return tuple(sorted(held, key=lambda test: (test is not self.bad_place, test.p)))

    @property
    def bad_place(self) -> Association | None:
        """What is to be suspected before any variable: hardware that has reported errors, a place of failures."""
        held = [test for test in self.tests if test.is_significant]
        held = [test for test in held if test.factor == "hardware" or (test.factor in PLACES and test.is_gathered)]
        return min(held, key=lambda test: (test.factor != "hardware", test.p), default=None)

    @property
    def start(self) -> Association | None:
        """The test that failures depend on the start of a process; on a seed, if that decides them."""
        held = [test for test in self.tests if test.is_significant and test.factor in SEEDS]
        return min(held, key=lambda test: SEEDS.index(test.factor), default=None)

    @property
    def runs(self) -> Association | None:
        """The test that failures come in runs, so that trials say less than their number."""
        held = [test for test in self.tests if test.is_significant and test.factor in RUNS]
        return min(held, key=lambda test: test.p, default=None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences of significant tests, without ``bad_place`` and ``start``, which are conclusions.

        Only the clearest kind of runs is named. If seeds decide, trials of one round fail together for that reason.
        """
        by_seed = self.start is not None and self.start.factor != "start"
        explained = (*SEEDS, "order", *RUNS) if by_seed else SEEDS
        kept = (test for test in self.significant if test is not self.bad_place and test.factor not in explained)
        return tuple(test.sentence for test in kept if test.factor not in RUNS or test is self.runs)


#: For a table without tests.
NO_ASSOCIATIONS = Associations()


def associations(cells: Sequence[CellTrials], *, differ: bool = False) -> Associations:
    """Test whether failures depend on a place, a rank, a start, a time, or the trial before.

    ``differ``: a cell differs from its baseline, so variables matter besides any place.

    All tests are conditional on the number of failures of each cell. If trials are exchangeable within their cells, at
    most ``ASSOCIATION_LEVEL`` of the tables have any association.

    Devices are compared within their host, slots within host and devices, jobs within host, so that each says something
    that the wider place does not. Trials that do not count, and unknown values, are left out.
    ``docs/explanation/statistics.md`` has the tests.
    """
    trials = _in_order(cells)
    places = [*_places(trials, differ), *_first_trials(trials)]
    tests = [
        *places,
        *_hardware(trials),
        *_ranks(trials),
        *_in_time(trials, places, ("order", *RUNS)),
        *_step_times(trials),
    ]
    adjusted = holm([test.p for test in tests])
    tests = [replace(test, p_adjusted=p) for test, p in zip(tests, adjusted, strict=True)]
    if any(test.is_significant and test.factor in RUNS for test in tests):
        rounds = analyse_rounds([_counted(cell) for cell in cells])
        if rounds.explain_runs:
            text = "failures come and go over the run, in all cells together, which makes no difference between them"
            tests = [replace(test, sentence=text) if test.factor in RUNS else test for test in tests]
    return Associations(tuple(tests))


def dependence(cells: Sequence[CellTrials]) -> Association | None:
    """The test of the trial before in its cell, if it leaves a doubt (p < 0.05) that rounds do not explain.

    Then no difference between cells is sure. If failures of each cell come in runs of five, cells "differ" in half of
    all tables; this test catches all of these, and at 1 % would miss one in fifteen.
    """
    trials = _in_order(cells)
    test = next(_in_time(trials, [*_places(trials), *_first_trials(trials)], RUNS[:1]), None)
    if test is None or test.p >= _SUSPICION or analyse_rounds([_counted(cell) for cell in cells]).explain_runs:
        return None
    return test


def _counted(cell: CellTrials) -> list[TrialFacts]:
    return [facts for facts in cell.finished if facts.is_counted]


def _in_order(cells: Sequence[CellTrials]) -> list[TrialFacts]:
    return in_order([facts for cell in cells for facts in _counted(cell)])


# Places.


def _values(factor: Factor, facts: TrialFacts) -> tuple[Any, ...]:
    place = facts.place
    match factor:
        case "host":
            return () if place.host is None else (place.host,)
        case "device":
            return tuple((place.host, device) for device in place.devices)
        case "slot":
            return () if place.slot is None else ((place.host, place.slot),)
        case "start":
            return () if facts.start is None else (facts.start,)
        case "hash seed":
            return () if facts.hash_seed is None else (facts.hash_seed,)
        case "seed":
            return () if facts.run_seed is None else (facts.index,)
    return () if place.job is None else (place.job,)


def _places(trials: Sequence[TrialFacts], differ: bool = False) -> list[Association]:
    return [
        *filter(None, (_place(factor, trials, differ) for factor in PLACES)),
        *_starts(trials),
        *_seeds(trials),
        *_hash_seeds(trials),
    ]


def _place(factor: Factor, trials: Sequence[TrialFacts], differ: bool) -> Association | None:
    known = [(facts, values) for facts in trials if (values := _values(factor, facts))]
    if len({values for _, values in known}) < 2:
        return None
    # Trials of a start may be alike. If all of them ran at one place, only the first counts; if they ran at several
    # places, they are compared with each other.
    places_of: dict[Hashable, set[Hashable]] = {}
    for facts, values in known:
        places_of.setdefault((facts.key, facts.start), set()).add(values)
    # Trials are compared within a stratum.
    strata: dict[Hashable, list[tuple[TrialFacts, tuple[Any, ...]]]] = {}
    spoken, several_places = set[Hashable](), []
    for facts, values in known:
        start = None
        if facts.start is not None and not facts.in_one_process:
            start = (facts.key, facts.start)
            if len(places_of[start]) == 1:
                if start in spoken:
                    continue
                spoken.add(start)
                start = None
        several_places.append((facts, values))
        wider = () if factor == "host" else (facts.place.host, facts.place.devices if factor == "slot" else ())
        strata.setdefault((facts.key, wider, start), []).append((facts, values))
    known = several_places
    all_trials, all_failed = Counter[Any](), Counter[Any]()
    expected: dict[Any, float] = {}
    for stratum in strata.values():
        rate = sum(facts.is_failure for facts, _ in stratum) / len(stratum)
        for facts, values in stratum:
            all_trials.update(values)
            all_failed.update(values if facts.is_failure else ())
            for value in values:
                expected[value] = expected.get(value, 0.0) + rate
    several = len({facts.place.host for facts, _ in known}) > 1

    def name_of(value: Any) -> str:
        if factor in ("host", "job"):
            return str(value) if factor == "host" else f"job {value}"
        host, number = value
        return f"{'GPU' if factor == 'device' else 'slot'} {number}" + (f" of {host}" if several and host else "")

    def in_order(values: Iterable[Any]) -> list[Any]:
        parts = {value: value if isinstance(value, tuple) else (value,) for value in values}
        return sorted(parts, key=lambda value: [(isinstance(it, str), str(it).zfill(12)) for it in parts[value]])

    # Compare each place with all others that are not named yet, so that a bad one does not hide a second one.
    held, number, least = set[Any](), 0, 1.0
    while tested := _gathering(strata.values(), held):
        p, worst = min(tested, key=lambda each: each[0])
        if not number:
            number, least = len(tested), p
        elif p >= ASSOCIATION_LEVEL / number / (len(PLACES) + 1):
            break
        held.update(worst)
        if least >= ASSOCIATION_LEVEL / number / (len(PLACES) + 1):
            break
    if not number:
        return None
    there = [facts for facts, values in known if held.intersection(values)]
    names = first_names([name_of(value) for value in in_order(held)], 4)
    test = Association(
        factor,
        join_names(names),
        sum(facts.is_failure for facts in there),
        len(there),
        sum(facts.is_failure for facts, _ in known),
        len(known),
        min(1.0, number * least),
        shares=tuple(
            Share(name_of(value), all_failed[value], all_trials[value], expected[value])
            for value in in_order(all_trials)
        ),
    )
    where = f"{'in' if factor in ('job', 'slot') else 'on'} {test.value}"
    if not test.is_gathered:
        rest = f"{test.all_failures - test.failures} of {test.all_trials - test.trials}"
        numbers = f"{test.failures} of {test.trials} trials, {rest} ({p_text(test.p)})"
        return replace(test, sentence=f"more failures {where} than elsewhere: {numbers}")
    suspect = PLACES[factor] + ("s" if len(held) > 1 else "")
    is_all = _MOST * test.failures >= test.all_failures
    suspect += " as well" if differ else ", not the variables" if is_all else "; the others have another cause"
    text = f"{test.failures} of {test.all_failures} failures {where}: suspect {suspect}"
    return replace(
        test, sentence=f"{text} ({test.value} ran {test.trials} of {test.all_trials} trials; {p_text(test.p)})"
    )


def _gathering(
    strata: Iterable[Sequence[tuple[TrialFacts, tuple[Any, ...]]]], without: Collection[Any]
) -> list[tuple[float, list[Any]]]:
    """The one-sided p of each value; values that no trial tells apart, such as a pair of devices, have one p."""
    tables: dict[Any, list[Counts]] = {}
    members: dict[Any, set[int]] = {}
    for stratum in strata:
        left = [(facts, values) for facts, values in stratum if not set(values).intersection(without)]
        failures = sum(facts.is_failure for facts, _ in left)
        here = Counter(chain.from_iterable(values for _, values in left))
        failed = Counter(chain.from_iterable(values for facts, values in left if facts.is_failure))
        for value, number in here.items():
            members.setdefault(value, set()).update(id(facts) for facts, values in left if value in values)
            if number < len(left):
                counts = (failed[value], number, failures - failed[value], len(left) - number)
                tables.setdefault(value, []).append(counts)
    alike: dict[frozenset[int], list[Any]] = {}
    for value in tables:
        alike.setdefault(frozenset(members[value]), []).append(value)
    return [(stratified_tails(tables[values[0]])[1], values) for values in alike.values()]


# Errors that hardware has reported.


def _hardware(trials: Sequence[TrialFacts]) -> Iterator[Association]:
    """Test, for each device and host, whether trials with an error there fail more often, within cells."""
    at: dict[tuple[str | None, str], dict[int, str]] = {}
    for number, facts in enumerate(trials):
        for place, what in facts.hardware:
            at.setdefault((facts.place.host, place), {}).setdefault(number, what)
    tested: list[tuple[float, str, list[int]]] = []
    several = len({facts.place.host for facts in trials}) > 1
    for (host, place), errors in at.items():
        tables: dict[CellKey, list[int]] = {}
        for number, facts in enumerate(trials):
            counts = tables.setdefault(facts.key, [0, 0, 0, 0])
            side = 0 if number in errors else 2
            counts[side] += facts.is_failure
            counts[side + 1] += 1
        strata = [(a, b, c, d) for a, b, c, d in tables.values() if b and d]
        name = "the host" if place == "host" else place
        name = f"{name} {host}" if place == "host" and several and host else f"{name} of {host}" if several else name
        tested.append((stratified_tails(strata)[1] if strata else 1.0, name, list(errors)))
    for p, name, errors_at in sorted(tested)[:1]:
        with_error = [trials[number] for number in errors_at]
        failed, failures = sum(facts.is_failure for facts in with_error), sum(facts.is_failure for facts in trials)
        others, passed = len(trials) - failures, len(with_error) - failed
        names = Counter(
            what
            for facts in with_error
            if facts.is_failure
            for place, what in facts.hardware
            if name.startswith(place) or (place == "host" and name.startswith("the host"))
        )
        what = names.most_common(1)[0][0] if names else "an error"
        text = (
            f"suspect {name}: {failed} of {failures} failures came with {what} there, "
            f"{passed} of {others} other trials ({p_text(min(1.0, p * len(tested)))})"
        )
        yield Association(
            "hardware", name, failed, len(with_error), failures, len(trials), min(1.0, p * len(tested)), sentence=text
        )


# Starts, and seeds.


def _starts(trials: Sequence[TrialFacts]) -> Iterator[Association]:
    """Test whether trials of one start end more alike than trials of several, within cells and places."""
    shared = shared_starts(trials)
    known = [each for each in trials if each.start in shared.get(each.key, ()) and not each.in_one_process]
    if not known:
        return
    strata = _numbered((facts.key, facts.place.key) for facts in known)
    several: dict[int, set[int | None]] = {}
    for stratum, facts in zip(strata, known, strict=True):
        several.setdefault(int(stratum), set()).add(facts.start)
    if not any(len(each) > 1 for each in several.values()):
        return
    import numpy as np

    failed = np.array([facts.is_failure for facts in known], dtype=float)
    groups = _numbered((stratum, facts.start) for stratum, facts in zip(strata, known, strict=True))
    sizes = np.bincount(groups)
    member = np.zeros((len(known), len(sizes)))
    member[np.arange(len(known)), groups] = 1 / np.sqrt(sizes)[groups]

    def spread(residuals: _Numbers) -> Any:
        """The sum over starts of n (share - share of the cell)^2."""
        return ((residuals @ member) ** 2).sum(axis=1)

    [p] = _permuted(failed, strata, [spread])
    starts: dict[tuple[CellKey, int], list[bool]] = {}
    by_number: dict[int, list[bool]] = {}
    for facts in known:
        if facts.start is not None:
            starts.setdefault((facts.key, facts.start), []).append(facts.is_failure)
            by_number.setdefault(facts.start, []).append(facts.is_failure)
    by_number = dict(sorted(by_number.items()))
    total = (sum(map(sum, by_number.values())), len(known)) * 2
    shares = tuple(Share(f"start {number}", sum(each), len(each)) for number, each in by_number.items())
    text = f"failures depend on what a process draws at its start: {_describe_starts(starts, by_number)} ({p_text(p)})"
    yield Association("start", "", *total, p, shares=shares, sentence=text)


def _describe_starts(starts: Mapping[tuple[CellKey, int], list[bool]], by_number: Mapping[int, list[bool]]) -> str:
    """``all 12 in starts 0 and 2, none of 8 in start 1``; no numbers if starts of one number differ."""
    if all(all(each) or not any(each) for each in by_number.values()):
        names: list[str] = []
        for ends in (True, False):
            numbers = [number for number, each in by_number.items() if each[0] is ends]
            said = first_names([str(number) for number in numbers], _MOST_NAMES)
            where = f"start{'s' * (len(numbers) != 1)} {join_names(said)}"
            count = sum(len(by_number[number]) for number in numbers)
            names += [f"{'all' if ends else 'none of'} {count} in {where}"] if numbers else []
        return ", ".join(names)
    if all(all(each) or not any(each) for each in starts.values()):
        bad = [len(each) for each in starts.values() if all(each)]
        good = [len(each) for each in starts.values() if not any(each)]
        return f"all {sum(bad)} in {len(bad)} starts, none of {sum(good)} in {len(good)}"
    rates = sorted(starts.values(), key=lambda each: (sum(each) / len(each), len(each)))
    least, most = rates[0], rates[-1]
    return f"from {sum(least)} of {len(least)} in one start to {sum(most)} of {len(most)} in another"


def _hash_seeds(trials: Sequence[TrialFacts]) -> Iterator[Association]:
    """Test whether processes with the same hash seed always end alike, in all cells that have failures and passes.

    p is the chance of that if the failing processes of each cell are any of its processes. For each cell, given earlier
    ones, it is the number of ways to choose them so that each seed has one outcome, divided by the number of all ways.
    A start with both outcomes refutes it. With ``--aorta-seed``, trials of one index share all other seeds as well, so
    only starts with trials of several indices count.
    """
    units: dict[CellKey, dict[Hashable, list[TrialFacts]]] = {}
    for number, facts in enumerate(trials):
        if facts.hash_seed is not None and not facts.in_one_process:
            unit = ("of its own", number) if facts.start is None else facts.start
            units.setdefault(facts.key, {}).setdefault(unit, []).append(facts)
    decided = _decided(units, lambda facts: facts.hash_seed)
    if decided is None:
        return
    outcome, p, *total = decided
    sides = [
        join_names(first_names([str(seed) for seed, end in sorted(outcome.items()) if end is side], _MOST_NAMES))
        or "none"
        for side in (True, False)
    ]
    text = f"PYTHONHASHSEED decides it: fails with {sides[0]}, passes with {sides[1]} ({p_text(p)})"
    yield Association("hash seed", "", total[0], total[1], total[0], total[1], p, sentence=text)


def _seeds(trials: Sequence[TrialFacts]) -> Iterator[Association]:
    """The same test for ``--aorta-seed``, which gives trials of one index the same seeds."""
    units: dict[CellKey, dict[Hashable, list[TrialFacts]]] = {}
    for number, facts in enumerate(trials):
        if facts.run_seed is not None:
            units.setdefault(facts.key, {})[number] = [facts]
    decided = _decided(units, lambda facts: facts.index)
    if decided is None:
        return
    outcome, p, *total = decided
    bad = sorted(seed for seed, end in outcome.items() if end)
    again = next((facts.file for facts in trials if facts.is_failure and facts.index == bad[0]), "") if bad else ""
    names = join_names(first_names([str(index) for index in bad], _MOST_NAMES)) or "none"
    text = f"the seed decides it: {len(bad)} of {len(outcome)} trials fail, the same ones in each cell that fails: "
    text += f"{names} ({p_text(p)}); --aorta-replay {again} runs one of them again"
    yield Association("seed", "", total[0], total[1], total[0], total[1], p, sentence=text)


def _decided(
    units: Mapping[CellKey, Mapping[Hashable, list[TrialFacts]]], seed_of: Callable[[TrialFacts], int | None]
) -> tuple[dict[int, bool], float, int, int] | None:
    """Outcome of each seed, p, failures and trials; ``None`` if no seed occurs twice in cells with both outcomes."""
    outcome: dict[int, bool] = {}
    seeds, p, is_decided, asked = Counter[int](), 1.0, True, 0
    failures = number_of_trials = 0
    for cell in units.values():
        ends: list[tuple[int, bool]] = []
        for those in cell.values():
            by_index = seed_of(those[0]) == those[0].index
            if those[0].run_seed is not None and len({facts.index for facts in those}) == 1 and not by_index:
                continue
            is_decided &= len({facts.is_failure for facts in those}) == 1
            ends += [(seed, those[0].is_failure) for facts in those[:1] if (seed := seed_of(facts)) is not None]
            failures += sum(facts.is_failure for facts in those)
            number_of_trials += len(those)
        failed = sum(end for _, end in ends)
        if not 0 < failed < len(ends):
            continue
        asked += 1
        free, fixed = Counter[int](), 0
        for seed, _ in ends:
            if seed not in outcome:
                free[seed] += 1
            else:
                fixed += outcome[seed]
        for seed, end in ends:
            is_decided &= outcome.setdefault(seed, end) == end
            seeds[seed] += 1
        if is_decided:
            p *= _ways_to_agree(free.values(), failed - fixed) / comb(len(ends), failed)
    if not asked or max(seeds.values()) < 2:
        return None
    return outcome, min(1.0, p) if is_decided else 1.0, failures, number_of_trials


def _ways_to_agree(sizes: Iterable[int], failed: int) -> int:
    """Number of ways to choose whole groups of these sizes with so many members together."""
    ways = [1] + [0] * failed
    for size in sizes:
        for total in range(failed, size - 1, -1):
            ways[total] += ways[total - size]
    return ways[failed] if failed >= 0 else 0


# First trials.


def _firsts(trials: Sequence[TrialFacts]) -> list[TrialFacts]:
    """The first trial of each cell, which may compile, download or warm up for the others."""
    return list({facts.key: facts for facts in reversed(trials)}.values())


def _first_trials(trials: Sequence[TrialFacts]) -> Iterator[Association]:
    first = _firsts(trials)
    failures, number = (
        Counter(facts.key for facts in trials if facts.is_failure),
        Counter(facts.key for facts in trials),
    )
    tables = [
        (facts.is_failure, 1, failures[facts.key] - facts.is_failure, number[facts.key] - 1)
        for facts in first
        if number[facts.key] > 1
    ]
    if len(tables) > 1:
        failed, count, rest, others = map(sum, zip(*tables, strict=True))
        p = stratified_tails(tables)[1]
        expected = sum((one + later) / (own + more) for one, own, later, more in tables)
        text = (
            f"the first trial of a cell fails more often than later ones: {failed} of {count}, {rest} of {others} "
            f"({p_text(p)}); look at what only it does, such as to compile or to download"
        )
        yield Association(
            "first trial", "", failed, count, failed + rest, count + others, p,
            shares=(
                Share("first", failed, count, expected),
                Share("later", rest, others, failed + rest - expected),
            ), sentence=text,
        )  # fmt: skip


# Ranks.


def _ranks(trials: Sequence[TrialFacts]) -> Iterator[Association]:
    causes = [facts.culprit for facts in trials if facts.culprit is not None and facts.culprit[1] > 1]
    if not causes:
        return
    import numpy as np

    sizes, number = Counter(size for _, size in causes), Counter(rank for rank, _ in causes)
    most = max(sizes)
    p_values = {}
    for rank, count in number.items():
        # The chance that a rank is the cause so often if each rank of a failure is equally likely to be it.
        sums = np.ones(1)
        for size, failures in sizes.items():
            for _ in range(failures if size > rank else 0):
                sums = np.convolve(sums, np.array([1 - 1 / size, 1 / size]))
        p_values[rank] = min(1.0, most * float(sums[count:].sum()))
    rank = min(p_values, key=lambda each: (p_values[each], each))
    text = (
        f"rank {rank} is the cause in {number[rank]} of {len(causes)} failures: look at its device, its host, "
        f"and what only it does ({p_text(p_values[rank])})"
    )
    shares = tuple(Share(f"rank {each}", number[each], len(causes)) for each in range(most))
    counts = (number[rank], len(causes), len(causes), len(causes))
    yield Association("rank", f"rank {rank}", *counts, p_values[rank], shares=shares, sentence=text)


# Order in time, and the trial before.


def _in_time(
    trials: Sequence[TrialFacts], places: Sequence[Association], factors: Collection[Factor]
) -> Iterator[Association]:
    """Tests of the order; ``trials`` in run order. Trials are exchanged within one start, and within suspect places."""
    count, number = len(trials), sum(facts.is_failure for facts in trials)
    if min(number, count - number) < _FEWEST or not all(facts.started_at for facts in trials):
        return
    import numpy as np

    failed = np.array([facts.is_failure for facts in trials], dtype=float)
    unequal: list[Factor] = [test.factor for test in places if test.p < _SUSPICION]
    first = {id(facts) for facts in _firsts(trials)} if "first trial" in unequal else set[int]()
    strata = _numbered(
        (facts.key, id(facts) in first, *(_values(factor, facts) for factor in dict.fromkeys(("start", *unequal))))
        for facts in trials
    )
    before = {factor: pairs for factor, pairs in _chains(trials).items() if factor in factors}
    asked: list[_Statistic] = [_trend] if "order" in factors else []
    asked += [partial(_products, *pairs) for pairs in before.values()]
    p_values = _permuted(failed, strata, asked) if asked else []
    if "order" in factors:
        rates = (np.bincount(strata, failed) / np.bincount(strata))[strata]
        parts = [slice(part * count // 3, (part + 1) * count // 3) for part in range(3)]
        names = ("first third", "second third", "last third")
        shares = [
            Share(name, int(failed[part].sum()), len(failed[part]), float(rates[part].sum()))
            for name, part in zip(names, parts, strict=True)
        ]
        text = (
            f"the failure rate changes over the run: {shares[0].failures} of {shares[0].trials} in its first third, "
            f"{shares[2].failures} of {shares[2].trials} in its last ({p_text(p_values[0])}); {_meaning(trials)}"
        )
        counts = (number, count, number, count)
        yield Association("order", "", *counts, p_values.pop(0), shares=tuple(shares), sentence=text)
    for (factor, pairs), p in zip(before.items(), p_values, strict=True):
        yield _run(factor, failed, strata, pairs, p)


def _chains(trials: Sequence[TrialFacts]) -> dict[Factor, tuple[_Numbers, _Numbers]]:
    """Pairs of each trial and the one before, in three senses; of equal ones only the first."""
    import numpy as np

    senses: dict[Factor, list[Hashable]] = {
        "trial before in its cell": [facts.key for facts in trials],
        "trial before": [None] * len(trials),
        "trial before at its place": [(facts.place.key, facts.place.slot) for facts in trials],
    }
    chains: dict[tuple[tuple[int, int], ...], Factor] = {}
    for factor, groups in senses.items():
        members: dict[Hashable, list[int]] = {}
        for index, group in enumerate(groups):
            members.setdefault(group, []).append(index)
        if pairs := tuple(chain.from_iterable(pairwise(each) for each in members.values())):
            chains.setdefault(pairs, factor)
    return {factor: (np.array(pairs)[:, 0], np.array(pairs)[:, 1]) for pairs, factor in chains.items()}


def _trend(residuals: _Numbers) -> Any:
    count = residuals.shape[1]
    return abs(residuals @ [index / (count - 1) for index in range(count)])


def _products(first: _Numbers, second: _Numbers, residuals: _Numbers) -> Any:
    return (residuals[:, first] * residuals[:, second]).sum(axis=1)


def _numbered(strata: Iterable[Hashable]) -> _Numbers:
    import numpy as np

    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(stratum, len(numbers)) for stratum in strata])


def _centred(values: _Numbers, strata: _Numbers) -> Any:
    """Values minus the mean of their stratum."""
    import numpy as np

    return values - (np.bincount(strata, values) / np.bincount(strata))[strata]


def _permuted(values: _Numbers, strata: _Numbers, statistics: Sequence[_Statistic]) -> list[float]:
    """The p value of each statistic: the share of permutations within the strata in which it is as large.

    Equal inputs give equal p values. If all p are clearly large, a few permutations are enough (Besag &
    Clifford 1991, "Sequential Monte Carlo p-values").
    """
    import numpy as np

    generator, grouped = np.random.default_rng(len(values)), np.argsort(strata, kind="stable")
    residuals = _centred(values, strata)
    observed = np.array([statistic(residuals[None])[0] for statistic in statistics])
    # Rounding must not tell equal statistics apart.
    observed -= 1e-9 * (1 + np.abs(observed))
    as_large, made = np.zeros(len(statistics)), 0
    while made < _PERMUTATIONS and (made == 0 or as_large.min() < _CLEARLY_NOT):
        step = min(_STEP, _PERMUTATIONS - made)
        order = np.argsort(generator.random((step, len(values))) + strata[grouped], axis=1)
        permuted = np.empty((step, len(values)))
        permuted[:, grouped] = residuals[grouped][order]
        as_large += (np.array([statistic(permuted) for statistic in statistics]) >= observed[:, None]).sum(axis=1)
        made += step
    return [float(p) for p in (1 + as_large) / (1 + made)]


def _meaning(trials: Sequence[TrialFacts]) -> str:
    """The meaning of a change over the run for the comparison of cells."""
    halves: dict[CellKey, list[bool]] = {}
    for index, facts in enumerate(trials):
        halves.setdefault(facts.key, []).append(index < len(trials) / 2)
    if all(abs(sum(first) / len(first) - 0.5) <= _BY_TURNS for first in halves.values()):
        return "no number holds for the whole run"
    return "cells ran at different times, so that a difference between them may be this change"


def _step_times(trials: Sequence[TrialFacts]) -> Iterator[Association]:
    """Test whether step times change over the run; p is 1 if the change is too small to matter."""
    timed = [facts for facts in trials if facts.steps is not None]
    if len(timed) < _FEWEST or not all(facts.started_at for facts in timed):
        return
    import numpy as np

    times = np.array([log(facts.steps.median_ms) for facts in timed if facts.steps is not None])
    cells, count, third = _numbered(facts.key for facts in timed), len(timed), len(timed) // 3
    residuals = _centred(times, cells)
    change = expm1(float(residuals[-third:].mean() - residuals[:third].mean()))
    p = _permuted(times, cells, [_trend])[0] if abs(change) >= _SLOWER else 1.0
    text = f"step times change over the run: {change:+.0%} from its first third to its last ({p_text(p)})"
    yield Association("step times", "", 0, count, 0, count, p, sentence=f"{text}; {_meaning(timed)}")


def _run(factor: Factor, failed: _Numbers, strata: _Numbers, pairs: tuple[_Numbers, _Numbers], p: float) -> Association:
    import numpy as np

    first, second = pairs
    counts, sums = np.bincount(strata), np.bincount(strata, failed)
    rates = (sums / counts)[strata]
    # The second of two trials of one stratum is drawn from the remaining ones.
    left = ((sums - 1) / np.maximum(counts - 1, 1))[strata]
    same = strata[first] == strata[second]
    expected = float(np.where(same, rates[first] * left[first], rates[first] * rates[second]).sum())
    both = int((failed[first] * failed[second]).sum())
    residuals = failed - rates
    spread = float((rates[first] * (1 - rates[first])).sum())
    # Estimates from residuals are too low by about one over the size of the stratum.
    correlation = float((residuals[first] * residuals[second]).sum()) / spread if spread else 0.0
    correlation = min(0.99, max(0.0, correlation + float((same / counts[strata[first]]).mean())))
    independent = max(1, round(len(failed) * (1 - correlation) / (1 + correlation)))
    after = Share("after a failure", both, int(failed[first].sum()), expected)
    by_rates = float(rates[second].sum()) - expected
    after_none = Share("after none", int(failed[second].sum()) - both, len(first) - after.trials, by_rates)
    where = factor.removeprefix("trial before")
    text = (
        f"failures come in runs: a trial failed as the one before{where.replace(' its', ' the same') or ' it'} did "
        f"{both} times, by chance it would be about {expected:.0f} ({p_text(p)}); "
        f"{len(failed)} trials say as much as about {independent} independent ones"
    )
    total = (int(failed.sum()), len(failed)) * 2
    return Association(factor, "", *total, p, shares=(after, after_none), sentence=text, independent=independent)


# Nodes of a sweep: each is compared with all others that are not named yet, so that a bad node does not hide a second.
# The p values are one-sided and corrected for all nodes and both questions (Bonferroni).

#: Chance that any node is named although all are alike, at most.
NODE_LEVEL = 0.01

#: Two questions about each node: do fewer trials pass, and are its steps slower?
_QUESTIONS = 2


@dataclass(frozen=True)
class Node:
    """A node compared with others.

    Attributes:
        trials: its trials that were not interrupted; ``others``: trials on the other nodes.
        bad, others_bad: of these, trials that failed, hung, or had no result.
        p_bad: of "as often as on the others", one-sided, corrected.
        ratio: of its step times to the others'; ``None`` without step times on both sides.
        p_slow: of "slower by no more than the margin", one-sided, corrected.
    """

    name: str
    trials: int
    bad: int
    others_bad: int
    others: int
    p_bad: float = 1.0
    ratio: float | None = None
    p_slow: float = 1.0

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it stands out, as parts of a sentence; empty if it does not."""
        reasons = []
        if self.p_bad < NODE_LEVEL:
            rest = f"{self.others_bad} of {self.others} on the others"
            reasons.append(f"{self.bad} of {self.trials} trials did not pass, {rest} ({p_text(self.p_bad)})")
        if self.p_slow < NODE_LEVEL and self.ratio is not None:
            once = "" if self.trials > 1 else " in its only trial"
            reasons.append(f"{self.ratio - 1:.0%} slower{once} ({p_text(self.p_slow)})")
        return tuple(reasons)


def compare_nodes(trials: Iterable[TrialFacts], margin: float = SPEED_MARGIN) -> list[Node]:
    """Compare all nodes, by name; empty with fewer than two. ``margin``: ignore smaller changes of step times."""
    table: dict[CellKey, dict[str, list[TrialFacts]]] = {}
    for facts in trials:
        if facts.place.host is not None and facts.outcome not in ("interrupted", "in doubt"):
            table.setdefault(facts.key, {}).setdefault(facts.place.host, []).append(facts)
    left = {name for row in table.values() for name in row}
    family = len(left) * _QUESTIONS
    named: list[Node] = []
    if len(left) < 2:
        return []
    while True:
        nodes = [_node(name, table, left, margin, family) for name in sorted(left)]
        worst = min(nodes, key=lambda node: min(node.p_bad, node.p_slow))
        if not worst.reasons or len(left) == 2:
            return sorted([*named, *nodes], key=lambda node: node.name)
        left.remove(worst.name)
        named.append(worst)


def _node(
    name: str,
    table: Mapping[CellKey, Mapping[str, list[TrialFacts]]],
    left: Collection[str],
    margin: float,
    family: int,
) -> Node:
    counts: list[Counts] = []
    times: list[tuple[list[float], list[float]]] = []
    for row in table.values():
        if name in row:
            sides = row[name], [facts for each in row if each != name and each in left for facts in row[each]]
            bad, rest_bad = (sum(facts.outcome != "ok" for facts in side) for side in sides)
            counts.append((bad, len(sides[0]), rest_bad, len(sides[1])))
            own, rest = ([log(facts.steps.median_ms) for facts in side if facts.steps is not None] for side in sides)
            times += [(own, rest)] if own and rest else []
    bad, trials, others_bad, others = map(sum, zip(*counts, strict=True))
    compared = [each for each in counts if each[3]]
    p_bad = min(1.0, family * stratified_tails(compared)[1]) if compared and bad else 1.0
    if not times:
        return Node(name, trials, bad, others_bad, others, p_bad)
    # A t test within cells with one variance, so that one trial of a node is enough.
    difference, error, freedom = within_places(times)
    excess, p_slow = difference - log(1 + margin), 1.0
    if freedom >= 1 and excess > 0:
        from scipy.special import stdtr

        p_slow = min(1.0, family * float(stdtr(freedom, -excess / error))) if error else 0.0
    return Node(name, trials, bad, others_bad, others, p_bad, exp(difference), p_slow)


def trials_needed(nodes: int) -> int:
    """Trials on each of ``nodes`` nodes so that one that never passes stands out if all others pass."""
    return next(each for each in range(1, 100) if nodes * _QUESTIONS / comb(nodes * each, each) < NODE_LEVEL)


def node_sentences(nodes: Sequence[Node]) -> Iterator[str]:
    """One sentence for each node that stands out, and the list of them to drain."""
    suspects = [node for node in nodes if node.reasons]
    for node in suspects:
        yield f"{node.name}: {'; '.join(node.reasons)}"
    if suspects:
        yield f"to drain: {','.join(node.name for node in suspects)}"
