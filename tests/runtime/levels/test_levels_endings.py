"""Ends: in order, after exceptions and interrupts, and when a process is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import levels_tasks
import pytest
from levels_stage import Gates
from levels_stage import clean as clean
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import Orchestrator, Outcome, TaskRef, Worker, WorkerClosed


class Host:
    """A worker with a SUB worker that is at a gate."""

    def __init__(self, gates: Gates) -> None:
        self.worker = Worker(3, num_sub_workers=1, grace=0.1)
        self.gate = self.worker.register(levels_tasks.gate)
        self.gates = gates
        self.refs: list[TaskRef] = []
        self.handle = self.worker.submit(self.build)
        gates.wait_until_began("a")

    def build(self, orch: Orchestrator, args: Any, config: Any) -> None:
        self.refs.append(orch.submit_sub(self.gate, self.gates.at("a")))


@pytest.fixture
def host(gates: Gates) -> Iterator[Host]:
    host = Host(gates)
    yield host
    gates.open()
    host.worker.close()


# In order


@pytest.mark.statement(41)
def test_close_waits_for_the_runs_that_were_accepted_and_rejects_new_ones(host: Host) -> None:
    worker = host.worker
    second = worker.submit(lambda orch, args, config: orch.submit_sub(host.gate, host.gates.at("b")))
    refused = []

    def meanwhile() -> None:
        wait_until(lambda: worker._dispatcher.closing, "the beginning of close")
        try:
            worker.run(lambda orch, args, config: None)
        except WorkerClosed as error:
            refused.append(error)
        host.gates.open()

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(meanwhile)
        worker.close()
        other.result()

    assert len(refused) == 1
    assert host.handle.done
    assert second.done
    second.wait()
    assert host.gates.log() == ["a began", "a ended", "b began", "b ended"]


@pytest.mark.statement(41)
def test_close_that_has_waited_in_vain_can_be_called_again(host: Host) -> None:
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"have not ended within 0\.05 s; close can be called again"):
            host.worker.close(timeout=0.05)
    assert not host.handle.done
    with pytest.raises(WorkerClosed):
        host.worker.run(lambda orch, args, config: None)

    host.gates.open()
    host.handle.wait(PATIENCE)
    host.worker.close()
    assert host.refs[0].wait().ok


@pytest.mark.statement(41)
def test_a_run_that_is_still_being_built_is_completed(gates: Gates) -> None:
    worker = Worker(3, num_sub_workers=1)
    nothing = worker.register(levels_tasks.nothing)
    worker.init()
    building = threading.Event()

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        building.set()
        wait_until(lambda: worker._dispatcher.closing, "the beginning of close")
        orch.submit_sub(nothing)

    with ThreadPoolExecutor(1) as threads:
        submitted = threads.submit(worker.submit, build)
        building.wait(PATIENCE)
        worker.close()
        assert [record.ok for record in submitted.result().records] == [True]


@pytest.mark.statement(39)
def test_a_task_that_is_under_way_does_not_hold_up_the_end(host: Host) -> None:
    late = host.worker.register(levels_tasks.nothing)
    second = host.worker.submit(lambda orch, args, config: orch.submit_sub(late))
    host.handle.cancel("enough", running=True)
    host.worker.close()
    assert [record.ok for record in second.records] == [True]


# After exceptions


def test_an_exception_within_with_ends_what_runs_and_goes_on(gates: Gates) -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.append(orch.submit_sub(gate, gates.at("a")))
        refs.append(orch.submit_sub(gate, gates.at("b")))

    with pytest.raises(LookupError, match="of the user"), Worker(3, num_sub_workers=1, grace=0.1) as worker:  # noqa: PT012
        gate = worker.register(levels_tasks.gate)
        worker.submit(build)
        worker.submit(build)
        gates.wait_until_began("a")
        raise LookupError("of the user")

    records = [ref.wait(0) for ref in refs]
    assert [record.outcome for record in records] == [Outcome.CANCELLED] * 4
    assert records[0].failure is not None
    assert records[0].failure.message == "the worker is closed after an exception"
