"""Any process below a worker is killed at any moment, while tasks run at every level."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import Any

import psutil
import pytest
from levels_stage import no_torch as no_torch
from levels_stage import nothing_left, run_next, run_one, scalars
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import CallableHandle, Orchestrator, Outcome, SlotArgs, TaskError, TaskRef, Worker


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
        refs = [orch.submit_sub(self.handle, scalars(number + step)) for step in (0, 1)]
        records = [ref.wait() for ref in refs]
        return [number, sum(record.payload[1] for record in records if record.ok)]


def one_run(top: Worker, squares: CallableHandle, sums: CallableHandle, first: int) -> set[Outcome]:
    """Some tasks of each kind, each of which waits for the one before it; how they ended."""
    expected: list[tuple[TaskRef, list[int]]] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        before: list[TaskRef] = []
        for number in range(first, first + 6):
            before.append(orch.submit_sub(squares, scalars(number), after=before[-1:]))
            nested = orch.submit_next_level(sums, scalars(number))
            expected.append((before[-1], [number, number**2]))
            expected.append((nested, [number, number**2 + (number + 1) ** 2]))

    handle = top.submit(build)
    records = [ref.wait(PATIENCE) for ref, _ in expected]
    with contextlib.suppress(TaskError):
        handle.wait(PATIENCE)
    assert [record for record, (_, result) in zip(records, expected, strict=True) if record.payload != result] == [
        record for record in records if not record.ok
    ]
    return {record.outcome for record in records}


@pytest.mark.statement(37)
@pytest.mark.statement(38)
@pytest.mark.parametrize(
    ("kills", "seed"),
    [(12, 1), *(pytest.param(100, seed, marks=[pytest.mark.slow, pytest.mark.long]) for seed in range(5))],
)
def test_kills_of_any_process_cost_tasks_and_nothing_else(kills: int, seed: int) -> None:
    dice = random.Random(seed)
    outcomes: set[Outcome] = set()
    problems: list[BaseException] = []
    over = threading.Event()
    with nothing_left(), Worker(4, num_sub_workers=2, grace=0.1) as top:
        for _ in range(2):
            top.add_worker(Worker(3, num_sub_workers=2, grace=0.1))
        squares = top.register(square)
        sums = top.register(SumOfSquares(squares))

        def works() -> bool:
            """Whether all slots do: a group takes all of them at once."""
            group = run_one(lambda orch: orch.submit_sub_group(squares, [scalars(1)] * 2), top)
            return group.ok and all(run_next(top, sums, 1, worker=worker).payload == [1, 5] for worker in (0, 1))

        def run() -> None:
            try:
                while not over.is_set():
                    outcomes.update(one_run(top, squares, sums, dice.randrange(1000)))
            except BaseException as error:
                problems.append(error)

        assert works()
        load = threading.Thread(target=run)
        load.start()
        try:
            while kills:
                time.sleep(dice.uniform(0, 0.3))
                victims = sorted(process.pid for process in psutil.Process().children(recursive=True))
                # A zygote that starts alone may take longer than the pauses.
                if len(victims) > 1:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(dice.choice(victims), signal.SIGKILL)
                        kills -= 1
                        if kills % 8 == 0:  # a slot is given up when ten processes have died while they started
                            wait_until(works, "the revival of all slots")
        finally:
            over.set()
            load.join()
        assert top.unfinished == 0
    assert problems == []
    assert Outcome.SUCCESS in outcomes
    assert outcomes <= {Outcome.SUCCESS, Outcome.ENDPOINT_FAILURE, Outcome.TASK_FAILURE, Outcome.SKIPPED}
