"""For cells that are all combinations of values of variables: which variables act, and do they need each other?

A variable acts if its values differ within combinations of all others. Failures *need* two variables if more fail with
both than with either one together, p11 > p10 + p01: two independent causes cannot do that (VanderWeele & Robins 2008,
"Empirical and counterfactual conditions for sufficient cause interactions"). An interaction of log odds would not do:
0, 0 and 0 failures beside 15 are compatible with none. ``docs/explanation/statistics.md`` has the rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import comb, log, prod
from typing import Any, Literal

from pytest_aorta.common.texts import join_names
from pytest_aorta.triage import MARGIN, rates
from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.draws import independent, starts_p
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.rates import Counts

#: Below 5 %, as mid-p is slightly liberal: of 750 tables in which nothing acts, 4.1 % say something false.
_LEVEL = 0.04

#: Shares of the level: for variables, and for pairs of them if none acts by itself.
_OF_MAIN, _OF_PAIRS = 0.8, 0.2

#: Blocks of rounds in the test of pairs.
_BLOCKS = 6

#: If the rate elsewhere is at most this share, failures elsewhere are few.
_FEW = 0.1

#: Pairs the trials of two cells: ``verdicts._paired``.
Paired = Callable[[CellTrials, CellTrials], list[tuple[float, float]]]

Combination = tuple[int, ...]


@dataclass(frozen=True)
class Factor:
    """A variable with the texts of its values: ``FAST_ATTN=0``, ``FAST_ATTN=1``, ``without FAST_ATTN``."""

    name: str
    levels: tuple[str, ...]

    def text(self, chosen: Iterable[int]) -> str:
        return " or ".join(self.levels[level] for level in sorted(chosen))


@dataclass(frozen=True)
class Effect:
    """Test of one variable, or of the interaction of two; ``p_adjusted`` is corrected for all tests (Holm)."""

    factors: tuple[str, ...]
    p: float
    p_adjusted: float


@dataclass(frozen=True)
class Finding:
    """One finding; ``counts`` are failures and trials with ``levels``, and with the other values.

    ``needs``: failures need all of ``levels``. ``acts``: one variable acts, whatever the others are if ``alone``.
    ``depends``: the effect of one variable depends on the other. ``none``: no variable has a visible effect.
    """

    kind: Literal["needs", "acts", "depends", "none"]
    levels: tuple[str, ...]
    others: tuple[str, ...]
    counts: Counts
    p: float
    alone: bool = False
    makes: str = ""

    @property
    def text(self) -> str:
        failures, trials, other_failures, other_trials = self.counts
        p = rates.p_text(self.p)
        seen = f"{failures} of {trials} failed, {other_failures} of {other_trials}"
        is_few = other_failures * trials <= _FEW * failures * other_trials
        match self.kind:
            case "needs":
                names = join_names(self.levels)
                both = f"{'both' if len(self.levels) == 2 else 'all of'} {names}"
                return f"{'It needs' if is_few else 'Far more fail with'} {both}: {seen} otherwise ({p})."
            case "acts":
                alone = " alone" if self.alone else ""
                return f"{self.levels[0]}{alone} makes it {self.makes}: {seen} with {self.others[0]} ({p})."
            case "depends":
                return f"What {self.levels[0]} does depends on {self.levels[1]} ({p}): {self.others[0]}."
            case "none":
                return f"No variable has a visible effect: {self.others[0]}."


@dataclass(frozen=True)
class Factorial:
    """Cells that are all combinations of values, with the tests of variables and pairs, and the findings."""

    cells: tuple[CellKey, ...]
    factors: tuple[Factor, ...]
    method: Literal["exact", "sequential"]
    effects: tuple[Effect, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def acts(self) -> bool:
        return any(finding.kind != "none" for finding in self.findings)

    @property
    def sentences(self) -> tuple[str, ...]:
        acting = [finding for finding in self.findings if finding.kind == "acts"]
        is_open = len(acting) > 1 and not any(finding.alone for finding in acting)
        more = ["Whether they need each other is open."] if is_open else []
        return (*(finding.text for finding in self.findings), *more)


def find_design(cells: Sequence[CellTrials]) -> tuple[tuple[Factor, ...], dict[Combination, CellTrials]] | None:
    """Find variables so that the cells are all combinations of their values; ``None`` if there are fewer than two.

    "Not set" is a value as well. Named mitigations are variables with two values, and so is the environment, if there
    are several.
    """
    several = len({cell.environment for cell in cells}) > 1
    values: list[dict[str, str]] = []
    for cell in cells:
        own = {name.partition("=")[0]: name for name in cell.mitigations if name != "none"}
        values.append({**({"environment": cell.environment} if several else {}), **own})
    names = dict.fromkeys(name for each in values for name in each)
    levels = {name: tuple(dict.fromkeys(each.get(name, f"without {name}") for each in values)) for name in names}
    factors = tuple(Factor(name, those) for name, those in levels.items() if len(those) > 1)
    are_variables = [any("=" in level for level in factor.levels) for factor in factors]
    if sum(are_variables) < 2 or prod(len(factor.levels) for factor in factors) != len(cells):
        return None
    by_levels = {
        tuple(factor.levels.index(own.get(factor.name, f"without {factor.name}")) for factor in factors): cell
        for own, cell in zip(values, cells, strict=True)
    }
    return (factors, by_levels) if len(by_levels) == len(cells) else None


def factorials(
    cells: Iterable[CellTrials], paired: Paired, *, sequential: bool, by_rounds: Callable[[], bool]
) -> tuple[Factorial, ...]:
    """Analyse each group of compared cells that is a factorial and whose cells all have counted trials.

    ``sequential``: the number of trials depends on their results. ``by_rounds``: tells whether trials of a round end
    alike, so that only these are compared; called only if there is a factorial.
    """
    groups: dict[Hashable, list[CellTrials]] = {}
    for cell in cells:
        if cell.trials:
            groups.setdefault(cell.key.group(), []).append(cell)
    analysed = []
    for group in groups.values():
        design = find_design(group) if len(group) > 3 else None
        counted = [cell.statistics for cell in group]
        if design and all(each.counted for each in counted) and any(each.failures for each in counted):
            analysed.append(_Analysis(*design, paired, sequential, by_rounds()).result())
    return tuple(analysed)


@dataclass
class _Analysis:
    factors: tuple[Factor, ...]
    cells: dict[Combination, CellTrials]
    paired: Paired
    sequential: bool
    by_rounds: bool
    #: Failures and trials of each combination by stratum: place and round, if these matter.
    counts: dict[Combination, dict[tuple[Hashable, int | None], tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        several = len({place for cell in self.cells.values() for place in cell.statistics.places}) > 1
        for combination, cell in self.cells.items():
            own: dict[tuple[Hashable, int | None], tuple[int, int]] = {}
            for facts in cell.statistics.finished:
                if facts.is_counted:
                    key = (facts.place.key if several else None, facts.index if self.by_rounds else None)
                    failures, trials = own.get(key, (0, 0))
                    own[key] = failures + facts.is_failure, trials + 1
            self.counts[combination] = own

    @cached_property
    def _blocks(self) -> dict[tuple[Combination, Hashable], tuple[int, int]]:
        """Failures and trials by combination and stratum, with neighbouring rounds together."""
        rounds = sorted({index for own in self.counts.values() for _, index in own if index is not None})
        block = {index: place * _BLOCKS // len(rounds) for place, index in enumerate(rounds)}
        found: dict[tuple[Combination, Hashable], tuple[int, int]] = {}
        for combination, own in self.counts.items():
            for (place, index), (failures, trials) in own.items():
                at = combination, (place, None if index is None else block[index])
                before = found.get(at, (0, 0))
                found[at] = before[0] + failures, before[1] + trials
        return found

    @property
    def method(self) -> Literal["exact", "sequential"]:
        return "sequential" if self.sequential else "exact"

    def result(self) -> Factorial:
        numbers = range(len(self.factors))
        doubted = [number for number in numbers if self._loses(number)]
        main = [1.0 if number in doubted else self._main_p(number) for number in numbers]
        pairs = [] if self.sequential else [*itertools.combinations(numbers, 2)]
        of_pairs = [self._pair_p(*pair) for pair in pairs]
        adjusted = [
            *(min(1.0, p / _OF_MAIN) for p in rates.holm(main)),
            *(min(1.0, p / _OF_PAIRS) for p in rates.holm(of_pairs)),
        ]
        asked: list[Combination] = [*((number,) for number in numbers), *pairs]
        effects = tuple(
            Effect(tuple(self.factors[number].name for number in each), p, corrected)
            for each, p, corrected in zip(asked, [*main, *of_pairs], adjusted, strict=True)
        )
        acting = {number: adjusted[number] for number in numbers if adjusted[number] < _LEVEL}
        if acting:
            findings = self._explain_acting(acting)
        elif pairs_found := [(p, pair) for p, pair in zip(adjusted[len(numbers) :], pairs, strict=True) if p < _LEVEL]:
            findings = [self._explain_dependence(*min(pairs_found))]
        else:
            findings = [] if doubted else [self._none(effects[: len(numbers)])]
        keys = tuple(cell.key for cell in self.cells.values())
        return Factorial(keys, self.factors, self.method, effects, tuple(findings))

    # Tests of variables.

    def _main_p(self, number: int) -> float:
        """p of "this variable does nothing", in any combination of the others."""
        levels = range(len(self.factors[number].levels))
        if self.sequential:
            return self._sequential_p(number, levels[1:], levels[:1])
        # Compare each value with all others; for two values this is one question.
        asked = [frozenset({level}) for level in levels[1 if len(levels) == 2 else 0 :]]
        p_values = [max(self._conditional_p(number, each), self._starts_p(number, each)) for each in asked]
        return min(1.0, min(p_values) * len(asked))

    def _high(self, number: int) -> frozenset[int]:
        """The values with which more fail: above the division by rate with the largest likelihood."""
        levels = range(len(self.factors[number].levels))
        counts = [self._sum(combination for combination in self.cells if combination[number] == at) for at in levels]
        by_rate = sorted(levels, key=lambda level: counts[level][0] / counts[level][1])

        def likelihood(cut: int) -> float:
            return sum(_log_likelihood([counts[level] for level in side]) for side in (by_rate[:cut], by_rate[cut:]))

        return frozenset(by_rate[max(range(1, len(by_rate)), key=likelihood) :])

    def _sum(self, combinations: Iterable[Combination]) -> tuple[int, int]:
        numbers = [self.cells[each].statistics for each in combinations]
        return sum(each.failures for each in numbers), sum(each.counted for each in numbers)

    def _others(self, number: int, given: Mapping[int, Collection[int]]) -> Iterator[Combination]:
        """Combinations of all other variables that have these ``given`` values; this one is 0."""
        levels = [
            [0] if at == number else given.get(at, range(len(factor.levels))) for at, factor in enumerate(self.factors)
        ]
        yield from itertools.product(*levels)

    def _side(self, number: int, other: Combination, levels: Iterable[int]) -> list[Combination]:
        return [(*other[:number], level, *other[number + 1 :]) for level in levels]

    def _tables(self, number: int, high: Collection[int], given: Mapping[int, Collection[int]]) -> Iterator[Counts]:
        low = [level for level in range(len(self.factors[number].levels)) if level not in high]
        for other in self._others(number, given):
            sides = self._side(number, other, high), self._side(number, other, low)
            for stratum in dict.fromkeys(key for side in sides for each in side for key in self.counts[each]):
                numbers = [[self.counts[each].get(stratum, (0, 0)) for each in side] for side in sides]
                (ours, trials), (theirs, others) = (map(sum, zip(*side, strict=True)) for side in numbers)
                yield ours, trials, theirs, others

    def _conditional_p(
        self, number: int, high: Collection[int], given: Mapping[int, Collection[int]] | None = None
    ) -> float:
        tables = [*self._tables(number, high, given or {})]
        return rates.difference_p(*tables[0]) if len(tables) == 1 else rates.conditional_p(tables)

    def _starts_p(self, number: int, high: Collection[int]) -> float:
        """p of the test that exchanges processes within combinations of others; 0 if none served several trials."""
        if not any(cell.statistics.shared_starts for cell in self.cells.values()):
            return 0.0
        sides: tuple[list[Any], list[Any]] = ([], [])
        for combination, cell in self.cells.items():
            other = (*combination[:number], *combination[number + 1 :])
            for start in cell.statistics.starts:
                sides[combination[number] not in high].append(replace(start, place=(other, start.place)))
        return starts_p(tuple(sides[0]), tuple(sides[1]))

    def _loses(self, number: int) -> bool:
        """Whether the values lose trials at different rates; lost trials might have failed."""
        for level in range(1, len(self.factors[number].levels)):
            sides = [[cell.statistics for each, cell in self.cells.items() if each[number] == at] for at in (level, 0)]
            lost = [sum(each.loss_events for each in side) for side in sides]
            counted = [sum(each.counted for each in side) for side in sides]
            if rates.difference_p(lost[0], lost[0] + counted[0], lost[1], lost[1] + counted[1]) < _LEVEL:
                return True
        return False

    def _pair_p(self, one: int, other: int) -> float:
        """p of "the effect of one variable on the odds does not depend on the other"; 1 with more than two values.

        Exact, given how often each value has failed (Zelen 1971, "The analysis of several 2 x 2 contingency tables").
        """
        if len(self.factors[one].levels) > 2 or len(self.factors[other].levels) > 2:
            return 1.0
        strata: dict[Hashable, dict[Combination, tuple[int, int]]] = {}
        for (combination, stratum), counts in self._blocks.items():
            rest = tuple(level for number, level in enumerate(combination) if number not in (one, other))
            strata.setdefault((rest, stratum), {})[combination[one], combination[other]] = counts
        return interaction_p([[table.get(at, (0, 0)) for at in _SQUARE] for table in strata.values()])

    def _sequential_p(
        self,
        number: int,
        ones: Iterable[int],
        others: Collection[int],
        given: Mapping[int, Collection[int]] | None = None,
    ) -> float:
        """p that holds at any time, from pairs of trials that differ in this variable (Bonferroni over values)."""
        from pytest_aorta.triage.sequential import SequentialTest

        p_values = []
        for level, base in itertools.product(ones, others):
            test = SequentialTest(MARGIN)
            series = [
                self.paired(*(self.cells[each] for each in self._side(number, other, (base, level))))
                for other in self._others(number, given or {})
            ]
            test.pairs += _by_turns(series)
            p_values.append(test.comparison().p)
        return min(1.0, min(p_values) * len(p_values))

    # Findings.

    def _explain_acting(self, acting: Mapping[int, float]) -> list[Finding]:
        high = {number: self._high(number) for number in acting}
        left, findings = dict(acting), []
        subsets = [each for size in range(len(acting), 1, -1) for each in itertools.combinations(acting, size)]
        for subset in subsets:
            p = self._needs_p(subset, high) * len(subsets) if {*subset} <= {*left} else 1.0
            if p < _LEVEL:
                together = [each for each in self.cells if all(each[number] in high[number] for number in subset)]
                others = self._sum(each for each in self.cells if each not in together)
                levels = tuple(self.factors[number].text(high[number]) for number in subset)
                p = max(p, *(acting[number] for number in subset))
                findings.append(Finding("needs", levels, (), (*self._sum(together), *others), p))
                for number in subset:
                    del left[number]
        return findings + [self._acts(number, high[number], p) for number, p in left.items()]

    def _acts(self, number: int, high: frozenset[int], p: float) -> Finding:
        """The finding on a variable that needs no other, and whether it acts with each value of each other one."""
        factor = self.factors[number]
        low = frozenset(range(len(factor.levels))) - high
        alone = all(
            self._p_within(number, high, low, {at: (level,)}) < _LEVEL
            for at, other in enumerate(self.factors)
            if at != number
            for level in range(len(other.levels))
        )
        # Say what the other value does, as the first is the baseline's.
        sides = (low, high) if 0 in high else (high, low)
        counts = [self._sum(each for each in self.cells if each[number] in side) for side in sides]
        texts = [factor.text(side) for side in sides]
        rest = counts[0 if 0 in high else 1]
        most = counts[1 if 0 in high else 0]
        is_few = rest[0] * most[1] <= _FEW * most[0] * rest[1]
        makes = "rarer" if 0 in high else "frequent" if is_few else "more frequent"
        return Finding("acts", (texts[0],), (texts[1],), (*counts[0], *counts[1]), p, alone, makes)

    def _p_within(
        self, number: int, high: Collection[int], low: Collection[int], given: Mapping[int, Collection[int]]
    ) -> float:
        """p of "it does nothing" with a value of another variable; 1 if it does the opposite there."""
        tables = [*self._tables(number, high, given)]
        ours, trials, theirs, others = (sum(column) for column in zip(*tables, strict=True))
        if ours * others <= theirs * trials:
            return 1.0
        if self.sequential:
            return self._sequential_p(number, high, low, given)
        return self._conditional_p(number, high, given)

    def _needs_p(self, subset: Combination, high: Mapping[int, frozenset[int]]) -> float:
        """p of "with all of these no more fail than with all but one of them, summed over the missing one"."""
        from scipy.special import bdtrc

        rest = [number for number in range(len(self.factors)) if number not in subset]
        with_all: dict[Combination, list[Combination]] = {}
        with_all_but: dict[Combination, list[Combination]] = {}
        for each in self.cells:
            missing = [number for number in subset if each[number] not in high[number]]
            if len(missing) < 2:
                key = (*(each[number] for number in rest), *missing)
                (with_all_but if missing else with_all).setdefault(key, []).append(each)
        if self.sequential:
            return self._sequential_needs_p(subset, with_all, with_all_but)
        together, trials = self._draws(itertools.chain(*with_all.values()))
        apart = [
            self._draws(itertools.chain(*(those for key, those in with_all_but.items() if key[-1] == number)))
            for number in subset
        ]
        # Given all failures, binomial if they are rare; conservative if they are frequent.
        chance = trials / (trials + min(number for _, number in apart))
        every = together + sum(failures for failures, _ in apart)
        return min(1.0, 2 * float(bdtrc(together - 1, every, chance)))

    def _draws(self, combinations: Iterable[Combination]) -> tuple[int, int]:
        """Failures and trials; if processes served several, scaled to the number of independent trials."""
        failures = trials = 0.0
        for each in combinations:
            cell = self.cells[each].statistics
            worth = independent(cell.starts) if cell.shared_starts else cell.counted
            failures, trials = failures + cell.failures * worth / cell.counted, trials + worth
        return int(failures), int(trials)

    def _sequential_needs_p(
        self,
        subset: Combination,
        with_all: Mapping[Combination, Sequence[Combination]],
        with_all_but: Mapping[Combination, Sequence[Combination]],
    ) -> float:
        """As ``_needs_p``, valid at any time: a bet on (with all) - (sum of with all but one), fair or worse."""
        import numpy as np

        series = []
        for rest, those in with_all.items():
            pairs, weights = [], []
            for number in subset:
                key = (*rest, number)
                others = with_all_but[key]
                for other, each in itertools.product(others, those):
                    pairs.append(self.paired(self.cells[other], self.cells[each]))
                    weights.append(1 / (len(others) * len(those)))
            series.append(
                [
                    sum(w * (both / len(subset) - one) for w, (one, both) in zip(weights, step, strict=True))
                    for step in zip(*pairs, strict=False)
                ]
            )
        stakes = np.linspace(0.1, 0.95, 8) / len(subset)
        capital = np.cumsum(np.log1p(stakes[:, None] * np.array([0.0, *_by_turns(series)])), axis=1)
        return min(1.0, 2 / float(np.exp(capital).mean(axis=0).max()))

    def _explain_dependence(self, p: float, pair: Combination) -> Finding:
        one, other = (self.factors[number] for number in pair)
        counts = {
            (a, b): self._sum(each for each in self.cells if (each[pair[0]], each[pair[1]]) == (a, b))
            for a in range(len(one.levels))
            for b in range(len(other.levels))
        }
        order = sorted(counts, key=lambda each: counts[each][0] / counts[each][1])
        texts = [
            f"{counts[a, b][0]} of {counts[a, b][1]} failed with {one.levels[a]} and {other.levels[b]}"
            for a, b in (order[-1], order[0])
        ]
        ends = (*counts[order[-1]], *counts[order[0]])
        return Finding("depends", (one.name, other.name), (", ".join(texts),), ends, p)

    def _none(self, effects: Sequence[Effect]) -> Finding:
        counts = sorted(
            ((cell.statistics.failures, cell.statistics.counted) for cell in self.cells.values()),
            key=lambda each: each[0] / each[1],
        )
        (least, few), (most, many) = counts[0], counts[-1]
        seen = f"{least} of {few} to {most} of {many} failed in each cell"
        if counts[0] == counts[-1]:
            seen = f"{least} of {few} failed in each cell"
        tested = ", ".join(f"{effect.factors[0]} p = {effect.p_adjusted:.2g}" for effect in effects)
        return Finding(
            "none", (), (f"{seen} ({tested})",), (*counts[-1], *counts[0]), min(e.p_adjusted for e in effects)
        )


_SQUARE: tuple[Combination, ...] = ((0, 0), (0, 1), (1, 0), (1, 1))


def interaction_p(strata: Sequence[Sequence[tuple[int, int]]]) -> float:
    """The two-sided mid-p value of "two variables with two values do not interact" on the scale of odds.

    ``strata``: failures and trials with neither, the second, the first and both. Given the failures of each value, the
    number with both has a known distribution (Zelen 1971), which is summed over the strata.
    """
    import numpy as np

    chances, least = np.ones(1), 0
    for (none, n), (second, s), (first, f), (both, b) in strata:
        of_first, of_second, every = first + both, second + both, none + second + first + both
        possible = range(max(0, of_first - f, of_second - s, of_first + of_second - every),
                         min(b, of_first, of_second, n - every + of_first + of_second) + 1)  # fmt: skip
        ways = [
            comb(b, k) * comb(f, of_first - k) * comb(s, of_second - k) * comb(n, every - of_first - of_second + k)
            for k in possible
        ]
        chances = np.convolve(chances, [way / sum(ways) for way in ways])
        least += possible.start
    seen = sum(stratum[3][0] for stratum in strata) - least
    tail = min(float(chances[: seen + 1].sum()), float(chances[seen:].sum()))
    return min(1.0, 2 * tail - float(chances[seen]))


def _log_likelihood(counts: Sequence[tuple[int, int]]) -> float:
    """The log likelihood of a common rate, at its maximum."""
    failures, trials = (sum(each) for each in zip(*counts, strict=True))
    return sum((number * log(number / trials) for number in (failures, trials - failures) if number), 0.0)


def _by_turns(series: Sequence[Sequence[Any]]) -> list[Any]:
    """The first of each, then the second of each, and so on."""
    missing = object()
    return [each for turn in itertools.zip_longest(*series, fillvalue=missing) for each in turn if each is not missing]
