"""Which trials compute something else than others, and where first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.stage import Stage

from pytest_aorta.collectors.divergence import Step, Trial, compare_trials, described
from pytest_aorta.triage.divergence import Agreeing, compare_agreeing

#: A module whose output another thread sometimes changes; a module whose sum depends on the number of threads.
_RACE = """
import os, random, threading
import torch
from torch import nn
from pytest_aorta import Workload, WorkloadResult

draw = random.SystemRandom()

class Racy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        y = self.linear(x)
        if draw.random() < 0.15:
            thread = threading.Thread(target=lambda: y.data[0, :3].add_(1e-4))
            thread.start()
            thread.join()
        return torch.tanh(y)

class Race(Workload):
    def setup(self):
        self.net = nn.Sequential(nn.Linear(8, 16), Racy(), nn.Linear(16, 4))
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def run(self):
        for _ in range(6):
            self.optimizer.zero_grad()
            self.net(torch.randn(4, 8)).square().mean().backward()
            self.optimizer.step()
        return WorkloadResult(passed=True)
"""

_THREADS = """
import torch
from torch import nn
from pytest_aorta import Workload, WorkloadResult

class Scale(nn.Module):
    def forward(self, x):
        # Each thread has a part of the sum.
        parts = x.reshape(-1).tensor_split(torch.get_num_threads())
        return x / torch.stack([part.pow(3).sum() for part in parts]).sum()

class Threads(Workload):
    def setup(self):
        self.net = nn.Sequential(nn.Linear(64, 512), Scale(), nn.Linear(512, 8))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)

    def run(self):
        for _ in range(2):
            self.optimizer.zero_grad()
            self.net(torch.randn(64, 64)).square().mean().backward()
            self.optimizer.step()
        return WorkloadResult(passed=True)
"""


def _trial(*steps: str, events: Sequence[str] = ("forward:a", "forward:b", "parameter:w"), rank: int = 0) -> Trial:
    """A trial of one rank; each letter stands for a hash."""
    made = [
        Step(number, tuple(events[: len(step)]), "".join(letter * 8 for letter in step))
        for number, step in enumerate(steps, 1)
    ]
    return Trial({rank: made})


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
    found = compare_trials({"0": Trial({0: one, 1: two}), "1": Trial({0: other, 1: _trial("axx").ranks[0]})})
    assert found.places["1"].text(2) == "step 1, rank 1, the output of `b`"
    swapped = _trial("abc", events=("forward:b", "forward:a", "parameter:w"))
    found = compare_trials({"0": _trial("abc"), "1": _trial("abc"), "2": swapped})
    assert found.places["2"].text() == "step 1, where it has the output of `b` and the others have the output of `a`"
    assert described("backward:a#2") == "the gradient of the output of `a`, call 2"


def test_two_sides_are_compared_as_far_as_the_trials_of_each_agree() -> None:
    a, b = _trial("abc", "def"), _trial("abc", "dxf")
    assert compare_agreeing(Agreeing(a, None), Agreeing(a, None)) == "B computes the same (2 steps)"
    assert compare_agreeing(Agreeing(a, None), Agreeing(b, None)) == (
        "B computes something else, first in step 2, the output of `b`"
    )
    assert compare_agreeing(Agreeing(a, (1, 0, 0)), Agreeing(b, None)).startswith("trials of one side differ")


def test_statistics_have_a_tolerance_that_no_nan_passes() -> None:
    def trial(*values: Any) -> Trial:
        return Trial({0: [Step(1, ("forward:a", "forward:b"), [[value, value] for value in values])]}, 1e-3)

    found = compare_trials({"0": trial(1, 2), "1": trial(1.0001, 2.001), "2": trial(1, 2.1), "3": trial(1, "nan")})
    assert found.equal == ["0", "1"]
    assert {place.event for place in found.places.values()} == {"forward:b"}
    assert not compare_trials({"0": trial("nan", "inf"), "1": trial("nan", "inf")}).places


@pytest.mark.slow
def test_a_race_and_sums_by_threads_are_found_down_to_the_operator(stage: Stage) -> None:
    stage.write(race=_RACE, threads=_THREADS)
    result = stage.run_here("race.py", "--aorta-trials=10", "--aorta-collect=divergence:zoom=20")
    result.assert_outcomes(passed=10)
    text = " ".join(result.stdout.str().split())
    assert "trials differ from" in text or "no two of 10 trials" in text
    assert "the output of `1`" in text
    assert "of input 0 of aten.tanh.default in `1` (race.py:19); it was equal as the output of `1.linear`" in text
    (found,) = json.loads((stage.results / "matrix.json").read_text())["divergence"]
    assert found["zoom"]["differing"] == 3
    assert {place["event"] for place in found["differ"]} == {"forward:1"}

    result = stage.run_here(
        *("threads.py", "--aorta-trials=1", "--aorta-collect=divergence"),
        *("--aorta-mitigations=omp_1", "--aorta-mitigations=OMP_NUM_THREADS=2"),
    )
    text = " ".join(result.stdout.str().split())
    assert "they compute something else, first in step" in text
