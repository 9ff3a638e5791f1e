"""What a task costs, counted: containers that the garbage collector walks, calls of functions, messages."""

from __future__ import annotations

import collections
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import levels_tasks
import pytest
import torch
from levels_doubles import DispatcherBench
from levels_tensor_tasks import share

from pytest_aorta.runtime import Tag, TaskArgs, Worker
from pytest_aorta.runtime.engine.tasks import GraphTask
from pytest_aorta.runtime.graph.boxes import Box
from pytest_aorta.runtime.graph.footprint import Footprint
from pytest_aorta.runtime.graph.nodes import Node
from pytest_aorta.runtime.graph.tensor_map import Entry

TASKS, AWAITED = 1000, 200

Fill = Callable[[DispatcherBench], None]


def independent(bench: DispatcherBench) -> None:
    for _ in range(TASKS):
        bench.submit_sub("independent")


def chain(bench: DispatcherBench) -> None:
    tensor = share(torch.zeros(4))
    for _ in range(TASKS):
        bench.submit("link", args=TaskArgs().add(tensor, Tag.INOUT))


def rows(bench: DispatcherBench) -> None:
    whole = share(torch.zeros(TASKS, 8))
    for row in whole:
        bench.submit("row", args=TaskArgs().add(row, Tag.INOUT))


@pytest.fixture
def bench() -> Iterator[DispatcherBench]:
    made = DispatcherBench(nexts=1, subs=1)
    gc.collect()
    gc.freeze()  # what other tests and torch have made is looked at no more, which takes long
    yield made
    gc.unfreeze()
    made.close()


def containers() -> int:
    """How many objects the garbage collector walks, of this test."""
    for _ in range(3):  # it forgets tuples of plain values, nested ones from the inside
        gc.collect()
    return len(gc.get_objects())


def unfinished(bench: DispatcherBench) -> bool:
    return any(endpoint.running for endpoint in (*bench.next, *bench.sub))


def end_all(bench: DispatcherBench) -> None:
    while unfinished(bench):
        for endpoint in (*bench.next, *bench.sub):
            if endpoint.running:
                bench.end(endpoint)


@pytest.mark.parametrize(
    ("fill", "most"),
    # A node and a task; with a tensor its arguments, too; then who waits for whom, or what is written, and where.
    [(independent, 2), (chain, 6), (rows, 9)],
)
def test_a_full_pass_of_the_garbage_collector_meets_few_objects_per_task(
    fill: Fill, most: int, bench: DispatcherBench
) -> None:
    fill(bench)  # what there is one of, and what the first use of a function leaves
    end_all(bench)
    before = containers()

    fill(bench)
    waiting = (containers() - before) / TASKS
    end_all(bench)
    ended = (containers() - before) / TASKS

    assert waiting < most + 0.5
    assert ended < 2.5


@pytest.mark.parametrize("fill", [independent, chain, rows])
def test_tasks_out_of_scope_are_freed_at_once_and_not_by_the_garbage_collector(
    fill: Fill, bench: DispatcherBench
) -> None:
    gc.disable()
    try:
        with bench.orch.scope():
            fill(bench)
        end_all(bench)
        left = collections.Counter(type(found) for found in gc.get_objects())
    finally:
        gc.enable()

    assert [left[kind] for kind in (Node, GraphTask, TaskArgs, Entry, Box, Footprint)] == [0] * 6


def test_a_task_is_one_message_each_way_and_a_bounded_number_of_calls() -> None:
    calls = 0
    native: collections.Counter[str] = collections.Counter()

    def count(frame: Any, event: str, function: Any) -> None:
        nonlocal calls
        if event == "call":
            calls += 1
        elif event == "c_call":
            native[getattr(function, "__qualname__", "")] += 1

    def build(orch: Any, args: Any, config: Any) -> None:
        orch.submit_sub(handle).wait()
        previous = sys.getprofile()
        sys.setprofile(count)
        try:
            for _ in range(AWAITED):
                orch.submit_sub(handle).wait()
        finally:
            sys.setprofile(previous)

    with Worker(3, num_sub_workers=1) as worker:
        handle = worker.register(levels_tasks.nothing)
        worker.init()
        worker.run(build)

    # The loop's own thread may take some of the reports, or have taken one in part.
    assert native["socket.send"] == AWAITED
    assert native["socket.recv"] <= AWAITED * 1.1
    assert native["epoll.poll"] <= AWAITED * 1.2
    assert native["allocate_lock"] <= AWAITED * 1.3
    assert calls <= AWAITED * 125, f"{calls / AWAITED:.1f} calls per task, 117 when this was written"
