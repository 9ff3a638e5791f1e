"""Long queues: what a turn costs does not depend on how many tasks wait, whichever worker they wait for."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from levels_doubles import DispatcherBench

from pytest_aorta.runtime import Outcome
from pytest_aorta.runtime.graph.nodes import State

Fill = Callable[[DispatcherBench, int], None]


def sub_tasks(bench: DispatcherBench, number: int) -> None:
    bench.submit_sub("any")


def tasks_for_some(bench: DispatcherBench, number: int) -> None:
    """The one worker that may run most of them is busy; of the others, one may run the rest."""
    bench.submit("picky" if number % 8 else "easy")


def directed_tasks(bench: DispatcherBench, number: int) -> None:
    bench.submit("one", worker=1 + number % 2)


def tasks_for_the_lost_one(bench: DispatcherBench, number: int) -> None:
    """They fail at once, and leave nothing to be looked at."""
    bench.submit("lost", worker=0)
    if number % 2:
        bench.group("lost group", [0, 1])
    else:
        bench.submit("one", worker=1)


def groups(bench: DispatcherBench, number: int) -> None:
    bench.group("pair", [1, 2])


def lines_per_task(fill: Fill, count: int, lost: bool) -> float:
    """Lines of Python per task from its submission to its end, when ``count`` are submitted before any ends."""
    bench = DispatcherBench(nexts=4, subs=3)
    bench.eligible["picky"] = frozenset({1})
    if lost:
        for endpoint in (bench.next[0], bench.sub[0]):
            bench.lose(endpoint)
    lines = 0

    def count_line(frame: Any, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += 1
        return count_line

    sys.settrace(count_line)
    try:
        for number in range(count):
            fill(bench, number)
        while running := [endpoint for endpoint in (*bench.next, *bench.sub) if endpoint.running]:
            for endpoint in running:
                bench.end(endpoint)
    finally:
        sys.settrace(None)
    assert all(node.payload.has_settled for node in bench.run.nodes)
    bench.close()
    return lines / count


@pytest.mark.parametrize("lost", [False, True], ids=["healthy", "one lost"])
@pytest.mark.parametrize("fill", [sub_tasks, tasks_for_some, directed_tasks, groups])
def test_a_task_takes_as_many_steps_however_many_wait(fill: Fill, lost: bool) -> None:
    assert lines_per_task(fill, 800, lost) < 1.1 * lines_per_task(fill, 100, lost)


def test_tasks_for_a_lost_worker_take_as_many_steps_however_many_there_were() -> None:
    fill = tasks_for_the_lost_one
    assert lines_per_task(fill, 800, True) < 1.1 * lines_per_task(fill, 100, True)


@pytest.mark.parametrize("seed", range(5))
def test_in_any_mixture_each_task_runs_once_in_its_order_where_it_may(seed: int) -> None:
    """With losses and cancellations; what no worker could run has failed."""
    dice = random.Random(seed)
    bench = DispatcherBench(nexts=3, subs=2)
    may = {"picky": frozenset({1}), "pair": frozenset({0, 2}), "easy": frozenset({0, 1, 2})}
    bench.eligible.update(may)
    submitted: dict[str, list[Any]] = {name: [] for name in (*may, "sub")}
    for number in range(300):
        name = dice.choice(list(submitted))
        ref = bench.submit_sub(name) if name == "sub" else bench.submit(name)
        submitted[name].append(ref)
        if dice.random() < 0.1:
            dice.choice(submitted[name]).cancel()
        if dice.random() < 0.3:
            for endpoint in (*bench.next, *bench.sub):
                if endpoint.running and dice.random() < 0.7:
                    bench.end(endpoint)
        if number == 200:
            bench.lose(bench.next[1])
    while running := [endpoint for endpoint in (*bench.next, *bench.sub) if endpoint.running]:
        bench.end(dice.choice(running))

    for name, refs in submitted.items():
        order = [ref.record.started for ref in refs if ref.record.outcome is Outcome.SUCCESS]
        assert order == sorted(order)
        for ref in refs:
            assert ref.state in (State.COMPLETED, State.FAILED)
            if name != "sub" and ref.record.worker is not None:
                assert int(ref.record.worker.split()[1]) in may[name]
            if ref.record.outcome is Outcome.ENDPOINT_FAILURE:
                assert name == "picky"
    bench.close()
