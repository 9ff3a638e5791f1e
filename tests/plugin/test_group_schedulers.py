"""xdist's schedulers of groups with workers that die: simulated, as the order of events is what matters."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_aorta.plugin.roles import group_scheduler


class SimulatedWorker:
    """What xdist's controller and its worker process do: an item begins when the next one, or the end, is known."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="simulated")
        self.shutting_down = False
        self.queue: deque[int] = deque()

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_run(self) -> bool:
        return len(self.queue) > 1 or (bool(self.queue) and self.shutting_down)

    @property
    def is_over(self) -> bool:
        return not self.queue and self.shutting_down


def run(dist: str, nodeids: list[str], deadly: set[str], workers: int, seed: int) -> tuple[list[str], list[str]]:
    """Run items as ``DSession.loop_once`` does; those that have run to their end, and those that were lost."""
    rng = random.Random(seed)
    option = SimpleNamespace(loadscopereorder=True, maxworkerrestart=None)
    values = {"dist": dist, "tx": [f"{workers}*popen"], "numprocesses": workers}
    config: Any = SimpleNamespace(getoption=values.get, getvalue=values.get, option=option)
    scheduler = group_scheduler(config, None)
    scheduler.numnodes = workers
    active: list[SimulatedWorker] = []

    def begin(worker: SimulatedWorker) -> None:
        active.append(worker)
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, nodeids)
        if scheduler.collection_is_completed:
            scheduler.schedule()

    for _ in range(workers):
        begin(SimulatedWorker())
    ended, lost = [], []
    while active:
        if scheduler.tests_finished:
            for worker in active:
                worker.shutdown()
        worker = rng.choice([each for each in active if each.can_run or each.is_over] or [SimulatedWorker()])
        assert worker in active, f"hangs: {[list(each.queue) for each in active]}, {dict(scheduler.workqueue)}"
        if worker.is_over:
            active.remove(worker)
            if worker in scheduler.nodes:
                assert scheduler.remove_node(worker) is None
            continue
        index = worker.queue.popleft()
        if nodeids[index] in deadly:
            active.remove(worker)
            lost.append(scheduler.remove_node(worker))
            begin(SimulatedWorker())
        else:
            ended.append(nodeids[index])
            scheduler.mark_test_complete(worker, index)
    return ended, lost


@given(
    dist=st.sampled_from(["loadgroup", "loadscope", "loadfile"]),
    groups=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    deadly=st.sets(st.integers(0, 23), max_size=4),
    workers=st.integers(1, 3),
    seed=st.integers(0, 2**16),
)
@example(dist="loadgroup", groups=[1] * 5, deadly={2}, workers=2, seed=0)
def test_each_item_runs_once_whatever_workers_die_of(
    dist: str, groups: list[int], deadly: set[int], workers: int, seed: int
) -> None:
    names = [f"test_{group}.py::test_{index}" for group, size in enumerate(groups) for index in range(size)]
    if dist == "loadgroup":
        names = [f"{name}@{name.partition('.')[0]}" for name in names]
    deaths = {names[index] for index in deadly if index < len(names)}
    ended, lost = run(dist, names, deaths, workers, seed)
    assert sorted(ended) == sorted(set(names) - deaths)
    assert sorted(lost) == sorted(deaths)
