"""Which position of an axis changes the failure rate, of rates that nobody knows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta
from support.triage_facts import CRASH, trials

from pytest_aorta.search import Wanted
from pytest_aorta.search.arms import Arms
from pytest_aorta.search.bisect import Bisect, Bisection
from pytest_aorta.search.posterior import ChangePoint, no_change
from pytest_aorta.triage.facts import Outcome, TrialFacts

(FACTS,) = trials("none", ".")

#: The failure rate of each position; ``None`` where no trial can run.
Rate = Callable[[int], float | None]

#: Failures and trials of each position.
Counts = tuple[tuple[int, int], ...]


def run(search: Bisect, rate: Rate, seed: int = 0) -> tuple[Bisection, list[list[Wanted]]]:
    """The result, and the waves of trials."""
    generator = np.random.default_rng(seed)

    def outcome(position: int) -> Outcome:
        chance = rate(position)
        if chance is None:
            return "did not run"
        return "failed" if generator.random() < chance else "ok"

    steps, waves = search.steps(), []
    wanted = next(steps, None)
    while wanted is not None:
        waves.append(wanted)
        try:
            wanted = steps.send([replace(FACTS, index=each.index, outcome=outcome(each.arm)) for each in wanted])
        except StopIteration:
            break
    return search.result, waves


def positions(number: int) -> list[str]:
    return [f"p{each}" for each in range(number)]


def step(change: int, before: float, after: float) -> Rate:
    return lambda position: after if position >= change else before


# The distribution, beside integrals over the rates.


def likelihood(groups: list[tuple[int, int]]) -> float:
    """Of failures and trials in groups with a rate of its own each, by numerical integration over Jeffreys's prior."""
    found = 1.0
    for failures, number in groups:

        def density(rate: float, failures: int = failures, number: int = number) -> float:
            return float(rate**failures * (1 - rate) ** (number - failures) * beta.pdf(rate, 0.5, 0.5))

        found *= quad(density, 0, 1)[0]
    return found


COUNTS: list[Counts] = [
    ((0, 3), (1, 4), (4, 5), (2, 3)),
    ((0, 1), (0, 6), (3, 3), (0, 1)),
    ((5, 5), (2, 5), (0, 4), (0, 1)),
]


@pytest.mark.parametrize("counts", COUNTS)
def test_the_probabilities_are_those_of_integrals_over_both_rates(counts: Counts) -> None:
    points = ChangePoint(4, weights=[1, 1, 2, 1])
    for position, (failures, number) in enumerate(counts):
        points.learn(position, failures, number)

    def group(part: Counts) -> tuple[int, int]:
        return sum(failures for failures, _ in part), sum(number for _, number in part)

    weights = [
        (1 - no_change(4)) * prior * likelihood([group(counts[:at]), group(counts[at:])])
        for at, prior in ((1, 0.25), (2, 0.5), (3, 0.25))
    ]
    weights.append(no_change(4) * likelihood([group(counts)]))
    expected = np.array([0.0, *weights]) / sum(weights)
    assert points.distribution() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("counts", COUNTS)
def test_the_next_trial_is_the_one_that_is_expected_to_leave_the_least_entropy(counts: Counts) -> None:
    def told(*more: tuple[int, float]) -> ChangePoint:
        points = ChangePoint(4)
        for position, (failures, number) in enumerate(counts):
            points.learn(position, failures, number)
        for position, failed in more:
            points.learn(position, failed)
        return points

    def entropy(points: ChangePoint) -> float:
        chances = points.distribution()
        return float(-sum(chance * np.log(chance) for chance in chances if chance > 0))

    points = told()
    gains = []
    for position in range(4):
        chance = points.expected(position)
        left = chance * entropy(told((position, 1))) + (1 - chance) * entropy(told((position, 0)))
        gains.append(entropy(points) - left)
    assert gains[points.choose()] == pytest.approx(max(gains), abs=1e-9)


# The search.


def test_a_change_is_found_and_confirmed_in_either_direction() -> None:
    cases: list[tuple[float, float]] = [(0.0, 1.0), (0.0, 0.4), (0.1, 0.7), (0.8, 0.1)]
    for before, after in cases:
        right = 0
        for seed in range(20):
            change = 1 + seed % 11
            search = Bisect(positions(12), 2000)
            result, _ = run(search, step(change, before, after), seed)
            success, sentence = search.conclusion()
            assert success == (result.end == "change")
            right += success and result.first == change
            assert not success or f"fails {'more' if after > before else 'less'} often: " in sentence
        assert right >= 18


def test_no_change_is_hardly_ever_taken_for_one() -> None:
    results = [run(Bisect(positions(8), 150), step(0, 0.3, 0.3), seed)[0] for seed in range(40)]
    assert sum(result.end == "change" for result in results) <= 2
    flat = run(Bisect(positions(4), 4000), step(0, 0.0, 0.0))[0]
    assert flat.end in ("no change", "open")


def test_two_changes_are_likelier_than_one_where_trials_show_them() -> None:
    points = ChangePoint(9)
    for position in range(9):
        points.learn(position, 4 if 3 <= position < 6 else 0, 4)
    probability, places = points.two_changes()
    assert probability > 0.99
    assert places == (3, 6)
    one = ChangePoint(9)
    for position in range(9):
        one.learn(position, 2 if position >= 3 else 0, 4)
    assert one.two_changes()[0] < 0.1


def test_positions_that_cannot_run_are_skipped_and_those_beside_a_change_are_named() -> None:
    search = Bisect(positions(8), 500)
    result, waves = run(search, lambda position: None if position in (3, 4) else float(position >= 5))
    assert (result.end, result.last, result.first) == ("change", 2, 5)
    assert set(result.skipped) == {3, 4}
    assert all(sum(each.arm == position for wave in waves for each in wave) == 3 for position in (3, 4))
    assert "from one of p3, p4, p5 (the others cannot be tested) on it fails more often" in search.conclusion()[1]


def test_the_position_beside_a_likely_change_may_turn_out_to_be_unable() -> None:
    weights = [1.0, 1.0, 1.0, 1000.0, 1.0]
    search = Bisect(positions(5), 300, weights=weights)
    result, _ = run(search, lambda position: None if position == 2 else float(position >= 3))
    assert (result.end, result.last, result.first) == ("change", 1, 3)


def test_attempts_to_confirm_share_the_level() -> None:
    arms = Arms(2, 1000)
    levels = []
    for _ in range(3):
        steps = arms.confirm(0, 1, is_more=True, goes_on=lambda: arms.confirmation.pairs < 4)
        wanted: list[Wanted] | None = next(steps)
        while wanted is not None:
            try:
                wanted = steps.send([FACTS for _ in wanted])
            except StopIteration:
                wanted = None
        levels.append(arms.confirmation.level)
    assert levels == pytest.approx([0.025, 0.05 / 6, 0.05 / 12])


def test_where_nothing_can_run_it_is_said_why() -> None:
    search = Bisect(positions(4), 500)
    run(search, lambda position: None)
    success, sentence = search.conclusion()
    assert not success
    assert sentence == "nothing to bisect: 3 positions of 4 cannot be tested: did not run"


def test_the_budget_ends_it_with_what_is_likely_by_then() -> None:
    search = Bisect(positions(64), 10)
    result, waves = run(search, step(20, 0.0, 0.5), seed=3)
    assert result.end == "open"
    assert sum(map(len, waves)) == 10
    assert "not found in 10 trials (--max-trials); the most likely is " in search.conclusion()[1]


def test_several_run_side_by_side_and_each_has_an_index_of_its_own() -> None:
    search = Bisect(positions(16), 1000, at_once=4)
    result, waves = run(search, step(5, 0.0, 0.6), seed=1)
    assert (result.end, result.first) == ("change", 5)
    assert max(map(len, waves)) == 4
    asked = [(each.arm, each.index) for each in itertools.chain(*waves)]
    assert len(asked) == len(set(asked))


def search_for_crashes(hit: Rate, other: Rate, seed: int) -> Bisection:
    """Of trials that crash with a chance of ``hit``, and else fail in another way with a chance of ``other``."""
    search = Bisect(positions(20), 400, signature=CRASH.text)
    generator = np.random.default_rng(seed)

    def facts(arm: int) -> TrialFacts:
        crashes, fails = (generator.random() < (rate(arm) or 0.0) for rate in (hit, other))
        return replace(FACTS, outcome="failed" if crashes or fails else "ok", signature=CRASH if crashes else None)

    steps = search.steps()
    wanted = next(steps)
    with contextlib.suppress(StopIteration):
        while True:
            wanted = steps.send([facts(each.arm) for each in wanted])
    return search.result


def test_a_position_that_always_fails_in_another_way_is_skipped_and_not_taken_for_a_pass() -> None:
    rates = step(9, 0.0, 0.6)
    for seed in range(10):
        result = search_for_crashes(lambda arm: 0.0 if arm == 12 else rates(arm), lambda arm: float(arm == 12), seed)
        assert (result.end, result.first) == ("change", 9)
        assert result.trials[12] == 0


def test_another_way_to_fail_that_takes_the_place_of_passes_does_not_make_the_sought_one_more_frequent() -> None:
    ends = [search_for_crashes(lambda _: 0.1, step(9, 0.0, 0.8), seed).end for seed in range(20)]
    assert ends.count("change") <= 1


def test_a_position_that_is_likelier_before_needs_fewer_trials() -> None:
    weights = [20.0 if position == 40 else 1.0 for position in range(64)]

    def number(weights: list[float] | None) -> int:
        searches = (Bisect(positions(64), 2000, weights=weights) for _ in range(12))
        return sum(len(run(search, step(40, 0, 0.5), seed)[1]) for seed, search in enumerate(searches))

    assert number(weights) < 0.9 * number(None)


@pytest.mark.parametrize("factor", [1.2, 0.8])
def test_a_change_of_speed_is_found_by_times_and_not_by_failures(factor: float) -> None:
    search = Bisect(positions(16), 2000, speed=True)
    generator = np.random.default_rng(3)
    steps = search.steps()
    wanted = next(steps)
    while True:
        facts = []
        for each in wanted:
            time = float(generator.lognormal(0.0, 0.1)) * (factor if each.arm >= 9 else 1.0)
            fails = generator.random() < (0.5 if each.arm >= 4 else 0.0)
            facts.append(replace(FACTS, wall_sec=time, outcome="failed" if fails else "ok"))
        try:
            wanted = steps.send(facts)
        except StopIteration:
            break
    assert (search.result.end, search.result.first) == ("change", 9)
    does = "slower" if factor > 1 else "faster"
    assert search.conclusion()[1].startswith(f"from p9 on it is {does}: ")
    assert " took longer than " in search.conclusion()[1]
    assert search.report().head[1].startswith("over ")


def test_equal_speeds_are_no_change() -> None:
    generator = np.random.default_rng(5)
    named = 0
    for _ in range(20):
        search = Bisect(positions(8), 300, speed=True)
        steps = search.steps()
        wanted = next(steps)
        while True:
            try:
                wanted = steps.send([replace(FACTS, wall_sec=float(generator.lognormal(0.0, 0.1))) for _ in wanted])
            except StopIteration:
                break
        named += search.conclusion()[0]
    assert named <= 2
