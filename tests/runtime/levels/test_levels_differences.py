"""What holds where the specification says otherwise; docs/runtime.md has the reasons."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import levels_tasks
import levels_tensor_tasks
import pytest
import torch
from levels_stage import run_one
from levels_tensor_tasks import share

from pytest_aorta.runtime import Orchestrator, Outcome, Tag, TaskArgs, Worker
from pytest_aorta.runtime.tensors import footprint_of


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(3, device_ids=[0], num_sub_workers=1, grace=0.1) as worker:
        yield worker


def test_a_worker_of_level_2_is_a_host_with_one_slot(worker: Worker) -> None:
    with pytest.raises(
        ValueError, match=r"level must be 3 \(a host\) or more, not 2; slots \(level 2\) belong to a host"
    ):
        Worker(2)
    fill, x = worker.register(levels_tensor_tasks.fill), share(torch.zeros(3))
    args = TaskArgs().add(x, Tag.OUTPUT).add_scalar(4)
    record = run_one(lambda orch: orch.submit_next_level(fill, args, worker=0), worker)
    assert (record.outcome, record.worker, x.tolist()) == (Outcome.SUCCESS, "slot 0", [4] * 3)


def test_instead_of_a_thread_a_process_on_the_same_memory_whose_crash_ends_nothing_else(worker: Worker) -> None:
    pid, x = worker.register(levels_tensor_tasks.process), share(torch.zeros(3))
    fill, crash = worker.register(levels_tensor_tasks.fill), worker.register(levels_tasks.crash)
    seen: list[Any] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        address = x.data_ptr()
        seen.append(orch.submit_sub(pid).result())
        orch.submit_sub(fill, TaskArgs().add(x, Tag.OUTPUT).add_scalar(1)).result()
        assert x.data_ptr() == address  # written in place: nothing was sent back
        assert orch.submit_sub(crash).wait().outcome is Outcome.ENDPOINT_FAILURE
        orch.submit_sub(fill, TaskArgs().add(x[1:], Tag.OUTPUT).add_scalar(2)).result()

    with pytest.raises(RuntimeError, match="SIGSEGV"):
        worker.run(build)
    assert seen != [os.getpid()]
    assert x.tolist() == [1, 2, 2]


def test_instead_of_a_pointer_memory_has_a_number_that_no_other_memory_gets() -> None:
    """Where an allocator gives one address to one tensor after another, a pointer would order their tasks."""
    numbers, addresses = set(), set()
    for _ in range(20):
        tensor = share(torch.zeros(4096))
        numbers.add(footprint_of(tensor).backing)
        addresses.add(tensor.data_ptr())
        del tensor
    assert len(numbers) == 20 > len(addresses)
