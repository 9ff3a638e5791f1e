"""Any process below a worker is killed at any moment, while tasks run at every level."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest
from levels_stage import no_torch as no_torch
from levels_stage import nothing_left, run_next, run_one, scalars
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import CallableHandle, Orchestrator, Outcome, SlotArgs, TaskArgs, TaskError, TaskRef, Worker

#: Tasks of each kind in one run of the load.
BATCH = 6


def square(args: SlotArgs) -> list[int]:
    """The number, and its square, after so long that most kills meet a task."""
    time.sleep(0.02)
    number = int(args.scalars[0])
    return [number, number * number]


class SumOfSquares:
    """A graph of two tasks and what they have returned; in the process of a worker of level 3."""

    def __init__(self, handle: CallableHandle) -> None:
        self.handle = handle

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> list[int]:
        number = int(args.scalars[0])
        refs = [orch.submit_sub(self.handle, TaskArgs().add_scalar(number + step)) for step in (0, 1)]
        records = [ref.wait() for ref in refs]
        return [number, sum(record.payload[1] for record in records if record.ok)]


@dataclass
class Tree:
    """Level 4 with two SUB workers and two workers of level 3, with two SUB workers each."""

    top: Worker
    square: CallableHandle
    sums: CallableHandle

    @classmethod
    def of(cls, top: Worker) -> Tree:
        for _ in range(2):
            top.add_worker(Worker(3, num_sub_workers=2, grace=0.1))
        handle = top.register(square)
        return cls(top, handle, top.register(SumOfSquares(handle)))

    def works(self) -> bool:
        """Whether all slots do: a group takes all of them at once."""
        group = run_one(lambda orch: orch.submit_sub_group(self.square, [scalars(1)] * 2), self.top)
        return group.ok and all(run_next(self.top, self.sums, 1, worker=worker).payload == [1, 5] for worker in (0, 1))


@dataclass
class Load:
    """Runs one after the other on a thread; what became of each task."""

    tree: Tree
    over: threading.Event
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[Any] = field(default_factory=list)

    def run(self) -> None:
        """Until it is over."""
        number = 0
        while not self.over.is_set():
            number += BATCH
            self.one_run(number)

    def one_run(self, first: int) -> None:
        """A run of some tasks of each kind, each of which waits for the one before it."""
        expected: list[tuple[TaskRef, list[int]]] = []

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            before: list[TaskRef] = []
            for number in range(first, first + BATCH):
                ref = orch.submit_sub(self.tree.square, scalars(number), after=before[-1:])
                nested = orch.submit_next_level(self.tree.sums, scalars(number))
                before.append(ref)
                expected.append((ref, [number, number**2]))
                expected.append((nested, [number, number**2 + (number + 1) ** 2]))

        handle = self.tree.top.submit(build)
        records = [ref.wait(PATIENCE) for ref, _ in expected]
        with contextlib.suppress(TaskError):
            handle.wait(PATIENCE)
        for record, (_, result) in zip(records, expected, strict=True):
            self.outcomes[record.outcome.value] += 1
            if record.ok and record.payload != result:
                self.wrong.append((record, result))


def storm(kills: int, seed: int, most_pause: float) -> Load:
    """So many kills of any process, and what became of the tasks meanwhile."""
    dice = random.Random(seed)
    with Worker(4, num_sub_workers=2, grace=0.1) as top:
        tree = Tree.of(top)
        assert tree.works()
        load = Load(tree, threading.Event())
        thread = threading.Thread(target=load.run)
        thread.start()
        try:
            killed = 0
            while killed < kills:
                time.sleep(dice.uniform(0, most_pause))
                victims = sorted(process.pid for process in psutil.Process().children(recursive=True))
                # A zygote that starts alone may take longer than the pauses; after ten such deaths, slots are given up.
                if len(victims) > 1:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(dice.choice(victims), signal.SIGKILL)
                        killed += 1
        finally:
            load.over.set()
            thread.join()
        wait_until(tree.works, "the revival of all slots")
        assert top._dispatcher.graph.live == 0
    return load


def check(load: Load) -> None:
    """What must hold, whatever was killed."""
    assert load.wrong == []
    assert load.outcomes[Outcome.SUCCESS.value]
    assert set(load.outcomes) <= {
        Outcome.SUCCESS.value,
        Outcome.ENDPOINT_FAILURE.value,
        Outcome.TASK_FAILURE.value,
        Outcome.SKIPPED.value,
    }


@pytest.mark.statement(37)
@pytest.mark.statement(38)
def test_kills_of_any_process_cost_tasks_and_nothing_else() -> None:
    with nothing_left():
        check(storm(12, seed=1, most_pause=0.1))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_kills_of_any_process_cost_tasks_and_nothing_else(seed: int) -> None:
    """Five seeds: five hundred kills."""
    with nothing_left():
        load = storm(100, seed=seed, most_pause=0.3)
    print(f"100 kills: {dict(load.outcomes)}")
    check(load)
