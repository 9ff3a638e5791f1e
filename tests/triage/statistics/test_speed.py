"""Step times and operators of a cell beside those of its baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom, ttest_1samp, ttest_ind
from scipy.stats import t as student
from support.triage_facts import triage_of, trials

from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.columns import conclusions
from pytest_aorta.triage.facts import Place, TrialFacts
from pytest_aorta.triage.speed import (
    LEVEL,
    Measured,
    OperatorChange,
    Speed,
    SpeedKind,
    changed_operators,
    compare_speeds,
)

Times = Callable[[np.random.Generator, int], np.ndarray]


def at_one_place(times: Sequence[float]) -> list[Measured]:
    return [Measured(None, log(time)) for time in times]


def of_rounds(times: Iterable[float], place: int | None = None) -> list[Measured]:
    """Logarithms of times, of trials of which one began in each round."""
    return [Measured(place, time, f"round {number:03}") for number, time in enumerate(times)]


def speed(cell: Sequence[Measured], base: Sequence[Measured], *, sequential: bool = False, family: int = 1) -> Speed:
    (found,) = compare_speeds([(cell, base)], 0.05, sequential=sequential, family=family)
    return found


step_times = st.lists(st.floats(0.01, 1e5), min_size=4, max_size=30)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(step_times, step_times)
def test_at_one_place_it_is_welchs_interval_of_the_logarithms(cell: list[float], base: list[float]) -> None:
    found = speed(at_one_place(cell), at_one_place(base))
    reference = ttest_ind(np.log(cell), np.log(base), equal_var=False)
    interval = reference.confidence_interval(0.95)
    assert found.ratio is not None
    assert log(found.ratio) == pytest.approx(np.mean(np.log(cell)) - np.mean(np.log(base)), abs=1e-9)
    assert found.interval is not None
    # Without any variance, or with a range that no float has, SciPy says nothing.
    if np.isfinite(interval.low) and abs(interval.low) + abs(interval.high) < 600:
        assert found.interval.low == pytest.approx(exp(interval.low), rel=1e-6)
        assert found.interval.high == pytest.approx(exp(interval.high), rel=1e-6)
        assert np.isnan(reference.pvalue) or found.p == pytest.approx(reference.pvalue, rel=1e-6, abs=1e-12)


placed = st.lists(st.builds(Measured, st.integers(0, 2), st.floats(-1, 1), st.just("")), min_size=6, max_size=20)


@settings(max_examples=60)
@given(placed, placed)
def test_at_several_places_each_has_a_speed_of_its_own(cell: list[Measured], base: list[Measured]) -> None:
    shared = sorted({each.place for each in cell} & {each.place for each in base})  # type: ignore[type-var]
    assume(len(shared) > 1)
    rows = [(place, 1.0, time) for place, time, _ in cell] + [(place, 0.0, time) for place, time, _ in base]
    rows = [row for row in rows if row[0] in shared]
    assume(np.ptp([time for _, _, time in rows]) > 1e-3)
    design = np.array([[acts, *(place == each for each in shared)] for place, acts, _ in rows], dtype=float)
    freedom = len(rows) - design.shape[1]
    solution, squares, *_ = np.linalg.lstsq(design, np.array([time for _, _, time in rows]), rcond=None)
    assume(freedom > 0 and squares[0] > 1e-9)
    error = (squares[0] / freedom * np.linalg.inv(design.T @ design)[0, 0]) ** 0.5
    found = speed(cell, base)
    assert found.interval is not None
    low, high = solution[0] + student.ppf([0.025, 0.975], freedom) * error
    assert (log(found.interval.low), log(found.interval.high)) == pytest.approx((low, high), abs=1e-7)
    assert found.p == pytest.approx(2 * student.sf(abs(solution[0]) / error, freedom), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("effect", [0.0, 0.4, 1.5])
def test_the_sequential_p_is_the_inverse_of_a_bet_on_signs(effect: float) -> None:
    """The wealth: their probability with any chance of a plus, over that with one half."""
    rng = np.random.default_rng(7)
    pairs = rng.normal(effect, 1, 12)
    found = speed(of_rounds(pairs), of_rounds([0.0] * 12), sequential=True)
    above = (pairs > 0).sum()
    wealth = quad(lambda chance: (2 * chance) ** above * (2 - 2 * chance) ** (12 - above), 0, 1)[0]
    assert found.p == pytest.approx(min(1, 1 / wealth), rel=1e-4)


@given(st.lists(st.integers(-500, 500), min_size=8, max_size=30, unique=True))
def test_the_sequential_interval_holds_what_the_bets_have_not_refuted(numbers: list[int]) -> None:
    pairs = [number / 1000 for number in numbers]
    zero = of_rounds([0.0] * len(pairs))
    found = speed(of_rounds(pairs), zero, sequential=True)
    if found.interval is not None:
        for end, outwards in ((found.interval.low, -1e-6), (found.interval.high, 1e-6)):
            refuted, kept = (
                speed(of_rounds([each - log(end) - shift for each in pairs]), zero, sequential=True).p
                for shift in (outwards, -outwards)
            )
            assert refuted <= 0.05 < kept


def test_trials_of_a_round_are_compared_with_each_other() -> None:
    rng = np.random.default_rng(6)
    warming = 0.5 * np.exp(-np.arange(12) / 4)
    base, cell = (of_rounds(warming + shift + rng.normal(0, 0.01, 12)) for shift in (0.0, 0.08))
    pairs = [one.time - other.time for one, other in zip(cell, base, strict=True)]
    found, unpaired = speed(cell, base), speed(*([each._replace(began="") for each in side] for side in (cell, base)))
    assert (found.kind, unpaired.kind) == ("slower", "undecided")
    assert found.p == pytest.approx(ttest_1samp(pairs, 0).pvalue)


def test_stragglers_do_not_hide_that_all_others_are_slower() -> None:
    rng = np.random.default_rng(8)

    def times(shift: float) -> list[Measured]:
        late = [(0.4 + 0.6 * rng.random()) * (number in chosen) for number in range(20)]
        return of_rounds(shift + rng.normal(0, 0.02, 20) + late)

    for seed in range(10):
        chosen = np.random.default_rng(seed).permutation(20)[:2].tolist()
        found = speed(times(log(1.1)), times(0.0))
        assert found.kind == "slower"
        assert found.interval is not None
        assert found.interval.high - found.interval.low < 0.1


def test_trials_that_did_not_run_by_turns_are_not_compared() -> None:
    blocks = [Measured(None, 0.01 * number, f"round {number:03}") for number in range(40)]
    cell = [each for number, each in enumerate(blocks) if number // 10 % 2]
    base = [each for number, each in enumerate(blocks) if not number // 10 % 2]
    for sequential in (False, True):
        found = speed(cell, base, sequential=sequential)
        assert (found.kind, found.reason) == ("undecided", "its trials did not alternate with those of the baseline")


def test_times_without_any_noise_are_no_division_by_zero() -> None:
    for sequential in (False, True):
        found = speed(at_one_place([12.0] * 8), at_one_place([10.0] * 8), sequential=sequential)
        assert (found.kind, found.change) == ("slower", "+20% (20 to 20%)")
        same = speed(at_one_place([10.0] * 8), at_one_place([10.0] * 8), sequential=sequential)
        assert (same.kind, same.p) == ("similar", 1)


@pytest.mark.parametrize("sequential", [False, True])
def test_of_few_trials_nothing_is_said(sequential: bool) -> None:
    assert speed(at_one_place([10.0]), at_one_place([10.0, 10.1]), sequential=sequential).kind == "n/a"
    few = speed(at_one_place([20.0, 20.1, 20.2]), at_one_place([10.0, 10.1, 10.2]), sequential=sequential)
    assert (few.kind, few.interval, few.change) == ("undecided", None, "+99% (too few trials)")


def test_two_clocks_by_chance_make_no_difference_and_hide_none() -> None:
    rng = np.random.default_rng(3)

    def times(shift: float) -> list[Measured]:
        return of_rounds(shift + 0.25 * (rng.random(60) < 0.5) + rng.normal(0, 0.02, 60))

    same = [speed(times(0.0), times(0.0)).kind for _ in range(40)]
    assert same.count("slower") + same.count("faster") <= 5
    assert [speed(times(0.12), times(0.0)).kind for _ in range(40)].count("slower") >= 36


@pytest.mark.parametrize("sequential", [False, True])
def test_devices_of_two_speeds_are_compared_with_themselves(sequential: bool) -> None:
    rng = np.random.default_rng(4)

    def times(slower: float) -> list[Measured]:
        return [
            Measured(number % 2, log((13 if number % 2 else 10) * slower) + rng.normal(0, 0.01)) for number in range(16)
        ]

    assert speed(times(1.0), times(1.0), sequential=sequential).kind == "similar"
    assert speed(times(1.08), times(1.0), sequential=sequential).kind == "slower"
    apart = speed([each for each in times(1.3) if each[0]], [each for each in times(1) if not each[0]])
    assert (apart.kind, apart.reason) == ("undecided", "on other devices")


def test_more_cells_need_more_evidence() -> None:
    rng = np.random.default_rng(5)
    cell, base = (at_one_place([each * exp(rng.normal(0, 0.05)) for _ in range(8)]) for each in (10.9, 10.0))
    one, many = speed(cell, base), speed(cell, base, family=20)
    assert (one.kind, many.kind) == ("slower", "undecided")
    assert many.p_adjusted == pytest.approx(20 * one.p)


#: Of the logarithms of times.
NOISES: dict[str, Times] = {
    "normal": lambda rng, number: rng.normal(0, 0.03, number),
    "heavy": lambda rng, number: 0.03 * rng.standard_t(3, number),
    "skewed": lambda rng, number: rng.exponential(0.03, number),
    "two clocks": lambda rng, number: rng.normal(0, 0.01, number) + 0.3 * (rng.random(number) < 0.5),
}


def simulated(noise: str, change: float, *, runs: int, number: int = 10, watched: bool = False) -> list[SpeedKind]:
    """What is said of a cell whose steps take so much longer; of a watched run, the first that is."""
    rng = np.random.default_rng(11)
    found = []
    for _ in range(runs):
        base = of_rounds(NOISES[noise](rng, number))
        cell = of_rounds(NOISES[noise](rng, number) + log(1 + change))
        words = [
            speed(cell[:seen], base[:seen], sequential=watched).kind
            for seen in (range(2, number + 1) if watched else [number])
        ]
        found.append(next((word for word in words if word in ("slower", "faster")), words[-1]))
    return found


def test_five_percent_at_a_noise_of_three_is_found_with_ten_trials() -> None:
    assert simulated("normal", 0.05, runs=400).count("slower") >= 350
    assert simulated("normal", 1 / 1.05 - 1, runs=400).count("faster") >= 350
    assert simulated("normal", 0.05, runs=15, number=30, watched=True).count("slower") >= 14


def test_what_is_as_fast_is_rarely_called_another_nor_where_every_trial_is_looked_at() -> None:
    for noise in NOISES:
        found = simulated(noise, 0.0, runs=200)
        assert found.count("slower") + found.count("faster") <= 10
        assert noise != "normal" or found.count("similar") >= 155
        watched = simulated(noise, 0.0, runs=20, number=30, watched=True)
        assert watched.count("slower") + watched.count("faster") <= 2


BASE = trials("none", "." * 10, step_ms=(10.0, 10.2, 9.9), timed=True)


def speed_of(cell: list[TrialFacts], base: list[TrialFacts] = BASE, margin: float = 0.05) -> Speed:
    """In the table of a run."""
    found = triage_of([*base, *cell], TriageSettings(speed_margin=margin)).row(cell[0].key).speed
    assert found is not None
    return found


def test_the_margin_is_a_setting() -> None:
    cell = trials("a", "." * 10, step_ms=(10.8, 11.0, 10.7), timed=True)
    for margin, kind in ((0.05, "slower"), (0.2, "similar")):
        found = speed_of(cell, margin=margin)
        assert (found.kind, found.change) == (kind, "+8.0% (7.9 to 8.0%)")


def test_trials_of_a_table_are_compared_at_their_place() -> None:
    def on(cell: list[TrialFacts], shift: int) -> list[TrialFacts]:
        return [replace(each, place=Place("node1", ((each.index + shift) % 2,))) for each in cell]

    base, cell = (trials(name, "." * 12, step_ms=(10.0, 13.0)) for name in ("none", "a"))
    same, other = (speed_of(on(cell, shift), on(base, 0)) for shift in (0, 1))
    assert (same.kind, other.kind) == ("similar", "undecided")


def test_trials_that_ran_at_another_time_are_undecided() -> None:
    cell = trials("a", "." * 10, step_ms=(13.0, 13.2), timed=True)
    found = speed_of([replace(each, started_at=each.started_at.replace("T00", "T05")) for each in cell])
    assert (found.kind, found.reason) == ("undecided", "its trials ran at another time")


#: Milliseconds per step.
OPERATORS = {"aten::mm": 12.0, "aten::bmm": 5.0, "aten::copy_": 2.0, "aten::add_": 1.0, "c10d::allreduce_": 6.0} | {
    f"aten::small_{number}": 0.5 for number in range(8)
}


def profiled(
    mitigations: str, number: int, noise: np.random.Generator, step_ms: float = 30.0, **factors: float
) -> list[TrialFacts]:
    """Trials that differ as those of a busy machine do, each as a whole and in each of its operators."""
    found = []
    for trial in trials(mitigations, "." * number, step_ms=tuple(step_ms * noise.lognormal(0, 0.02, number))):
        whole = noise.lognormal(0, 0.05)
        times = {
            name: ms * whole * noise.lognormal(0, 0.05) * factors.get(name.rpartition(":")[2], 1.0)
            for name, ms in OPERATORS.items()
        }
        found.append(replace(trial, operators=times))
    return found


def changes(cell: list[TrialFacts], base: list[TrialFacts], cells: int = 1) -> list[OperatorChange]:
    return list(changed_operators(cell, base, 0.05, cells))


def test_an_operator_that_takes_30_percent_longer_is_named_first_and_in_the_conclusion() -> None:
    noise = np.random.default_rng(1)
    slower = profiled("x", 10, noise, step_ms=34.0, mm=1.3)
    table = triage_of([*profiled("none", 10, noise), *slower])
    row, sentences = table.row(slower[0].key), conclusions(table)
    assert row.verdict.kind == "slower"
    first = row.operators[0]
    assert first.name == "aten::mm"
    assert first.interval is not None
    assert first.interval.low <= 1.3 <= first.interval.high
    assert any("What differs most in x: aten::mm +" in sentence for sentence in sentences), sentences


def test_of_200_clean_pairs_no_more_than_the_level_name_any_operator() -> None:
    noise = np.random.default_rng(2)
    wrong = sum(bool(changes(profiled("x", 6, noise), profiled("none", 6, noise))) for _ in range(200))
    assert wrong <= binom.ppf(0.999, 200, LEVEL)


def test_what_may_wait_for_other_ranks_comes_last_and_says_so() -> None:
    noise = np.random.default_rng(3)
    found = changes(profiled("x", 10, noise, mm=1.3, allreduce_=3.0), profiled("none", 10, noise))
    assert [each.name for each in found] == ["aten::mm", "c10d::allreduce_"]
    assert found[1].text.endswith("which may wait for other ranks")


def test_an_operator_that_only_one_side_has_is_named() -> None:
    noise = np.random.default_rng(4)
    cell = [
        replace(trial, operators={**trial.operators, "aten::_foreach_add_": 3.0}) for trial in profiled("x", 8, noise)
    ]
    base = profiled("none", 8, noise)
    assert [each.text for each in changes(cell, base)] == ["aten::_foreach_add_ only here, 3 ms a step"]
    assert [each.text for each in changes(base, cell)] == ["aten::_foreach_add_ only in the baseline, 3 ms a step"]
    assert changes(cell[:2], base[:2]) == []  # two trials of each may differ by chance


def test_without_a_profile_on_both_sides_nothing_is_said() -> None:
    noise = np.random.default_rng(5)
    assert changes(profiled("x", 9, noise, mm=2.0), trials("none", "........")) == []
