"""The guess of how many more trials decide, against the power of the tests that decide."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from pytest_aorta.triage.rates import difference_interval, difference_p, more_trials


@pytest.mark.parametrize(("failures", "base_failures"), [(0, 10), (5, 22)])
def test_then_the_exact_test_has_about_the_power_asked_for(failures: int, base_failures: int) -> None:
    trials = 50
    more = more_trials(failures, trials, base_failures, trials, margin=0.1)
    assert more is not None
    # So many trials in all, or a few if there are already enough.
    needed = trials + more
    rate, base_rate = (failures + 0.5) / (trials + 1), (base_failures + 0.5) / (trials + 1)
    chances = np.outer(binom.pmf(range(needed + 1), needed, rate), binom.pmf(range(needed + 1), needed, base_rate))
    likely = [(int(k), int(j)) for k, j in np.argwhere(chances > 1e-3)]
    power = sum(float(chances[k, j]) for k, j in likely if difference_p(k, needed, j, needed) < 0.05)
    assert power > 0.78


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_then_the_interval_of_equal_rates_lies_within_the_margin(failures: int) -> None:
    trials = 10
    more = more_trials(failures, trials, failures, trials, margin=0.1)
    assert more is not None
    needed, rate = trials + more, (failures + 0.5) / (trials + 1)
    shown = np.array(
        [
            [difference_interval(k, needed, j, needed).within(-0.1, 0.1) for j in range(needed + 1)]
            for k in range(needed + 1)
        ]
    )
    chances = binom.pmf(range(needed + 1), needed, rate)
    assert 0.6 < float(chances @ shown @ chances) < 0.92


def test_without_failures_it_is_what_the_interval_needs() -> None:
    # Of no failure in n on both sides, the interval lies within 0.1 from n = 35 on.
    assert difference_interval(0, 35, 0, 35).within(-0.1, 0.1)
    assert not difference_interval(0, 34, 0, 34).within(-0.1, 0.1)
    assert more_trials(0, 34, 0, 34, margin=0.1) == 1


def test_more_comparisons_and_smaller_effects_take_more_trials() -> None:
    few = more_trials(0, 20, 5, 20, margin=0.1)
    many = more_trials(0, 20, 5, 20, margin=0.1, comparisons=20)
    small = more_trials(2, 20, 5, 20, margin=0.1)
    assert few is not None
    assert many is not None
    assert small is not None
    assert few < many
    assert few < small


def test_it_is_at_least_one() -> None:
    assert more_trials(0, 50, 50, 50, margin=0.1) == 1


def test_none_where_it_cannot_be_said() -> None:
    assert more_trials(0, 0, 3, 8, margin=0.1) is None
    assert more_trials(3, 8, 0, 0, margin=0.1) is None
    assert more_trials(50, 100, 50, 100, margin=0.0) is None
    assert more_trials(500, 1000, 505, 1000, margin=0.006) is None


@pytest.mark.parametrize(("rate", "simulated"), [(0.02, 115), (0.05, 219), (0.1, 348), (0.3, 934)])
def test_equivalence_at_any_time_takes_about_what_simulation_says(rate: float, simulated: int) -> None:
    # 150 streams of pairs for each rate: the trial by which 80 % of the intervals lay within the margin.
    trials = 1000
    more = more_trials(round(rate * trials), trials, round(rate * trials), trials, margin=0.1, sequential=True)
    assert more is not None
    few = more_trials(round(rate * 50), 50, round(rate * 50), 50, margin=0.1, sequential=True)
    assert few is not None
    assert 0.7 < (50 + few) / simulated < 1.5
    fixed = more_trials(round(rate * 50), 50, round(rate * 50), 50, margin=0.1)
    assert fixed is not None
    assert fixed < few
