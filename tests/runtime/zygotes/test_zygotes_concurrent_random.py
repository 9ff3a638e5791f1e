"""Tasks of one zygote that begin and end at random, some at the same moment: each takes its own, and only that."""

from __future__ import annotations

import os
import random
import signal

import pytest
from concurrent_stage import begin, concurrent, end_of
from support.nursery import Nursery
from support.processes import is_gone

from pytest_aorta.runtime.zygote import Task, Zygote


class Lives:
    """Tasks with the processes that they have left, and what must be true of all of them."""

    def __init__(self, zygote: Zygote, seed: int) -> None:
        self.zygote = zygote
        self.dice = random.Random(seed)
        self.living: dict[Task, list[int]] = {}
        self.gone: list[int] = []

    def begin_some(self) -> None:
        """Tasks with up to three orphans, some of which are stopped."""
        for _ in range(self.dice.randint(1, 3)):
            kinds = self.dice.choices(["fork", "stubborn", "bare"], k=self.dice.randint(0, 3))
            task, orphans = begin(self.zygote, orphans=kinds, stubborn=self.dice.random() < 0.3)
            self.living[task] = [task.pid, *orphans]
            for pid in self.living[task]:
                if self.dice.random() < 0.2:
                    os.kill(pid, signal.SIGSTOP)

    def end_some(self) -> None:
        """Each in a manner of its own, all of them before the end of the first is known."""
        chosen = self.dice.sample(list(self.living), self.dice.randint(0, len(self.living)))
        for task in chosen:
            how = self.dice.choice(["killed", "killed", "at once", "grace", "both", "orphan first"])
            if how in ("killed", "both"):
                os.kill(task.pid, signal.SIGKILL)
            if how == "orphan first":
                os.kill(self.living[task][-1], signal.SIGKILL)
            if how != "killed":
                task.kill(0.0 if how == "at once" else self.dice.choice([0.02, 0.1]))
        for task in chosen:
            end = end_of(task)
            assert end.returncode in (-signal.SIGKILL, -signal.SIGTERM)
            assert end.unkillable == []
            pids = self.living.pop(task)
            assert all(map(is_gone, pids))
            self.gone += pids

    def check(self) -> None:
        """Of what lives, nothing was ended."""
        assert not any(is_gone(pid) for pids in self.living.values() for pid in pids)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 5))])
def test_each_end_takes_what_was_left_by_that_task_and_nothing_else(nursery: Nursery, seed: int) -> None:
    lives = Lives(concurrent(nursery), seed)
    for _ in range(6):
        lives.begin_some()
        lives.check()
        lives.end_some()
        lives.check()
    lives.zygote.close()
    assert all(is_gone(pid) for pids in lives.living.values() for pid in pids)
    assert nursery.alive() == []
