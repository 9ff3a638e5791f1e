"""The ring of a run: a fixed number of slots for tasks that have not ended, and what a submission does without one."""

from __future__ import annotations

import threading
from typing import Any

import levels_tasks
import pytest
from levels_stage import Gates
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import Orchestrator, TaskRef, Worker


def _is_full(worker: Worker) -> bool:
    return any(run.unsettled >= run.ring_size for run in worker._dispatcher.runs)


@pytest.mark.statement(46)
def test_a_submission_to_a_full_ring_waits_until_a_task_has_ended(gates: Gates) -> None:
    refs: list[TaskRef] = []
    with Worker(3, num_sub_workers=1, ring_size=3) as worker:
        gate = worker.register(levels_tasks.gate)

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            refs.extend(orch.submit_sub(gate, gates.at(name)) for name in "abcd")

        building = threading.Thread(target=worker.run, args=(build,))
        worker.init()
        building.start()
        gates.wait_until_began("a")
        wait_until(lambda: _is_full(worker), "a submission that waits")
        assert len(refs) == 3
        assert worker._dispatcher.runs[0].unsettled == 3
        gates.open("a")
        gates.wait_until_began("b")
        gates.open()
        building.join(PATIENCE)
    assert [ref.wait().payload for ref in refs] == ["a", "b", "c", "d"]


@pytest.mark.statement(46)
@pytest.mark.parametrize("timeout", [0, 0.05])
def test_it_raises_where_that_is_asked_for_and_leaves_nothing(gates: Gates, timeout: float) -> None:
    with Worker(3, num_sub_workers=1, ring_size=2, ring_timeout=timeout) as worker:
        gate = worker.register(levels_tasks.gate)

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            refs = [orch.submit_sub(gate, gates.at(name)) for name in "ab"]
            with pytest.raises(RuntimeError, match=r"the ring is full: 2 tasks of this run have not .* ring_size"):
                orch.submit_sub(gate, gates.at("c"))
            gates.open()
            assert all(ref.wait(PATIENCE).ok for ref in refs)
            assert orch.submit_sub(gate, gates.at("d")).wait(PATIENCE).ok

        handle = worker.submit(build)
        handle.wait()
        assert [record.payload for record in handle.records] == ["a", "b", "d"]
        assert worker._dispatcher.graph.live == 0


@pytest.mark.statement(46)
def test_a_submission_that_waits_ends_with_its_run(gates: Gates) -> None:
    refused: list[str] = []
    with Worker(3, num_sub_workers=1, ring_size=1) as worker:
        gate = worker.register(levels_tasks.gate)

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            orch.submit_sub(gate, gates.at("a"))
            try:
                orch.submit_sub(gate, gates.at("b"))
            except RuntimeError as error:
                refused.append(str(error))

        worker.init()
        building = threading.Thread(target=worker.submit, args=(build,))
        building.start()
        gates.wait_until_began("a")
        [run] = worker._dispatcher.runs
        wait_until(lambda: _is_full(worker), "a submission that waits")
        worker._dispatcher.cancel_run(run, "enough", running=False)
        building.join(PATIENCE)
        assert refused == ["the run is cancelled: enough"]
        assert not run.ended.is_set()  # its first task goes on
        gates.open()
