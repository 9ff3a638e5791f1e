"""The rule of how many trials of a cell come from one start; pure, with costs that are given."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import fisher_exact

from pytest_aorta.launch.host.starts import StartPlan, ZygoteStart, differ, fisher

Outcome = Callable[[ZygoteStart, int], bool]


def ran(plan: StartPlan, trials: int, start_sec: float, trial_sec: float, outcome: Outcome) -> Counter[int]:
    """How many trials came from each start, where one trial follows the other."""
    shared: ZygoteStart | None = None
    served: Counter[int] = Counter()
    for trial in range(trials):
        quota = plan.quota(trial)
        if quota > 1 and shared is not None and shared.given < min(quota, shared.quota):
            start = shared
        else:
            start = plan.new_start()
            if not plan.start_sec:  # as the first is measured before it serves
                plan.start_sec.append(start_sec)
                quota = plan.quota(trial)
            start.quota = quota
            shared = start if quota > 1 else shared
        start.given += 1
        served[start.index] += 1
        plan.ended(start, outcome(start, trial), trial_sec)
    return served


def passes(start: ZygoteStart, trial: int) -> bool:
    return True


def mixed(start: ZygoteStart, trial: int) -> bool:
    return trial % 2 == 0


@pytest.mark.parametrize(
    ("start_sec", "trial_sec"),
    [pytest.param(0.4, 0.01, id="a quick start"), pytest.param(2.0, 10.0, id="long trials")],
)
def test_each_trial_is_a_process_of_its_own_where_starts_cost_little(start_sec: float, trial_sec: float) -> None:
    served = ran(StartPlan("auto", 30), 30, start_sec, trial_sec, passes)
    assert set(served.values()) == {1}


def test_a_small_cell_has_one_start() -> None:
    assert ran(StartPlan("auto", 8), 8, 2.5, 0.1, passes) == {0: 8}


def test_trials_that_turn_out_to_be_long_get_starts_of_their_own() -> None:
    assert ran(StartPlan("auto", 8), 8, 2.5, 20.0, passes) == dict.fromkeys(range(8), 1)


def test_a_cell_whose_starts_are_pure_has_twelve() -> None:
    served = ran(StartPlan("auto", 40), 40, 2.4, 0.1, passes)
    assert len(served) in (11, 12, 13)
    assert max(served.values()) <= 5


def test_a_cell_with_both_outcomes_in_a_start_has_as_few_as_may_be() -> None:
    served = ran(StartPlan("auto", 40), 40, 2.4, 0.1, mixed)
    assert max(served.values()) >= 8
    assert len(served) <= 9


def test_starts_take_a_quarter_of_the_time_at_least_before_trials_share_them() -> None:
    """With a start of 4 s and trials of 2 s, a start that serves eight trials costs a quarter of these."""
    served = ran(StartPlan("auto", 400), 400, 4.0, 2.0, mixed)
    assert max(served.values()) == 8


def test_the_first_two_trials_and_every_twentieth_are_processes_of_their_own() -> None:
    plan = StartPlan("auto", 100)
    assert [trial for trial in range(100) if plan.is_sentinel(trial)] == [0, 1, 20, 40, 60, 80]
    assert not any(StartPlan("auto", 8).is_sentinel(trial) for trial in range(8))
    assert not any(StartPlan("fork", 100).is_sentinel(trial) for trial in range(100))


def test_a_cell_goes_on_with_processes_of_its_own_once_forks_end_otherwise() -> None:
    def only_forks_fail(start: ZygoteStart, trial: int) -> bool:
        return start.quota == 1 or trial % 3 == 0

    plan = StartPlan("auto", 400)
    served = ran(plan, 400, 4.0, 1.0, only_forks_fail)
    assert plan.forks_differ
    assert plan.reason.startswith("a process for each trial: forks")
    assert max(index for index, count in served.items() if count > 1) < max(served) - 100


def test_starts_that_ended_alike_count_once_each() -> None:
    own = [ZygoteStart(number, 1, 1, passed=1) for number in range(4)]
    one_that_fails = ZygoteStart(9, 50, 50, failed=50)
    assert not differ([*own, one_that_fails])
    assert differ([*own, *(ZygoteStart(10 + number, 5, 5, failed=5) for number in range(6))])


def test_fishers_test_is_that_of_scipy() -> None:
    cases: list[tuple[tuple[int, int], tuple[int, int]]] = [
        ((5, 0), (0, 7)),
        ((3, 4), (9, 1)),
        ((1, 0), (1, 0)),
        ((10, 2), (40, 60)),
    ]
    for table in cases:
        assert math.isclose(fisher(*table), fisher_exact(np.array(table)).pvalue, rel_tol=1e-9)


def test_fork_has_one_start_and_spawn_one_for_each_trial() -> None:
    assert ran(StartPlan("fork", 100), 100, 0.1, 10.0, passes) == {0: 100}
    assert set(ran(StartPlan("spawn", 20), 20, 9.0, 0.1, passes).values()) == {1}


def test_the_user_may_choose_how_many_starts_there_are() -> None:
    served = ran(StartPlan("auto", 40, fixed=4), 40, 0.1, 1.0, passes)
    assert served == dict.fromkeys(range(4), 10)


def test_processes_that_share_a_cell_number_their_starts_apart() -> None:
    one, other = (StartPlan("spawn", 4, number=number, step=2) for number in (0, 1))
    assert [one.new_start().index for _ in range(3)] == [0, 2, 4]
    assert [other.new_start().index for _ in range(3)] == [1, 3, 5]
