"""Which trials compute something else than others, and where first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from support.stage import Stage

from pytest_aorta.collectors.divergence import Step, StepTraces, compare_trials, described
from pytest_aorta.triage.starts import compare_sides


def _trial(*steps: str, events: Sequence[str] = ("forward:a", "forward:b", "parameter:w"), rank: int = 0) -> StepTraces:
    """A trial of one rank; each letter stands for a hash."""
    made = [
        Step(number, tuple(events[: len(step)]), "".join(letter * 8 for letter in step))
        for number, step in enumerate(steps, 1)
    ]
    return StepTraces({rank: made})


def test_trials_leave_the_majority_where_they_differ_first() -> None:
    trials = {
        "0": _trial("abc", "def"),
        "1": _trial("abc", "def"),
        "2": _trial("abc", "dxx"),
        "3": _trial("abc"),  # which has ended
        "4": _trial("abc", "d"),  # in the middle of a step
        "5": _trial("xbc", "def"),
        "6": _trial("abc", "xxx"),
    }
    found = compare_trials(trials)
    assert found.equal == ["0", "1", "3", "4"]
    assert {name: place.text() for name, place in found.places.items()} == {
        "5": "step 1, the output of `a`",
        "6": "step 2, the output of `a`",
        "2": "step 2, the output of `b`",
    }
    assert found.places["2"].after == "forward:a"
    assert found.first is not None
    assert found.first[0] == "5"


def test_the_rank_that_differs_first_is_named_and_another_order_of_calls_is_no_other_hash() -> None:
    one, two = _trial("abc").ranks[0], _trial("abc").ranks[0]
    other = _trial("abx").ranks[0]
    found = compare_trials({"0": StepTraces({0: one, 1: two}), "1": StepTraces({0: other, 1: _trial("axx").ranks[0]})})
    assert found.places["1"].text(2) == "step 1, rank 1, the output of `b`"
    swapped = _trial("abc", events=("forward:b", "forward:a", "parameter:w"))
    found = compare_trials({"0": _trial("abc"), "1": _trial("abc"), "2": swapped})
    assert found.places["2"].text() == "step 1, where it has the output of `b` and the others have the output of `a`"
    assert described("backward:a#2") == "the gradient of the output of `a`, call 2"


def test_two_sides_are_compared_as_far_as_the_trials_of_each_agree() -> None:
    a, b, c = _trial("abc", "def"), _trial("abc", "dxf"), _trial("abc", "xxx")
    assert compare_sides({"0": a}, {"0": a, "1": a}) == "B computes the same (2 steps)"
    assert compare_sides({"0": a}, {"0": b}) == "B computes something else, first in step 2, the output of `b`"
    assert compare_sides({"0": a, "1": a, "2": c}, {"0": b}) == (
        "trials of one side differ from each other in step 2; before it, B computes the same"
    )


def test_statistics_have_a_tolerance_that_no_nan_passes() -> None:
    def trial(*values: Any) -> StepTraces:
        return StepTraces({0: [Step(1, ("forward:a", "forward:b"), [[value, value] for value in values])]}, 1e-3)

    found = compare_trials({"0": trial(1, 2), "1": trial(1.0001, 2.001), "2": trial(1, 2.1), "3": trial(1, "nan")})
    assert found.equal == ["0", "1"]
    assert {place.event for place in found.places.values()} == {"forward:b"}
    assert not compare_trials({"0": trial("nan", "inf"), "1": trial("nan", "inf")}).places


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one core there is one thread")
def test_sums_by_threads_are_found_down_to_the_operator(stage: Stage) -> None:
    """The first example of the documentation; the tests of ``docs/guides/localize.md`` follow a race within a cell."""
    result = stage.run_here(
        *("--aorta-workload=determinism", "--aorta-steps=1", "-n2", "--aorta-collect=divergence"),
        *("--aorta-mitigations=omp_1", "--aorta-mitigations=OMP_NUM_THREADS=2"),
    )
    text = " ".join(result.stdout.str().split())
    differ = "local-OMP_NUM_THREADS=2 and local-omp_1: they compute something else, first in step 1, the output of"
    assert f"{differ} `sum_100003`" in text
    assert "aten.sum.default in `sum_100003` (determinism.py:" in text
    assert "makes something else of equal inputs: 1 of 1 elements differ, the largest difference is " in text
