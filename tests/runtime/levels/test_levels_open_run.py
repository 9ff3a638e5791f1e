"""A run that stays open for long: what has settled and is out of scope is let go, by every process that has seen it."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import levels_tasks
import levels_tensor_tasks
import pytest
import torch
from levels_stage import descendants
from levels_tensor_tasks import Onward, share
from support.processes import wait_until

from pytest_aorta.runtime import Orchestrator, Tag, TaskArgs, Worker
from pytest_aorta.runtime.graph import Node
from pytest_aorta.runtime.scheduling import GraphTask, Member
from pytest_aorta.runtime.tensors import MAX_DEAD

#: Bytes of a tensor; four of them are unmapped at once, fewer with the next task.
SIZE = MAX_DEAD // 4


def mapped(pid: int) -> int:
    """Bytes of tensors in shared memory that a process has mapped."""
    found = 0
    for first, last in re.findall(r"^(\w+)-(\w+) ...s .*/torch_", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE):
        found += int(last, 16) - int(first, 16)
    return found


@pytest.fixture(scope="module", params=["slots", pytest.param("worker below", marks=pytest.mark.slow)])
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    slots = Worker(3, num_sub_workers=1)
    if request.param == "slots":
        with slots:
            yield slots
    else:
        with Worker(4) as worker:
            worker.add_worker(slots)
            yield worker


def test_memory_that_is_not_needed_is_unmapped_everywhere_while_the_run_is_open(worker: Worker) -> None:
    sub = worker.register(levels_tensor_tasks.invert_all)
    onward = worker.register(Onward(sub))
    worker.init()
    pids = descendants()
    most = 0

    def one(orch: Orchestrator, tensor: torch.Tensor) -> None:
        args = TaskArgs().add(tensor, Tag.INOUT).add_scalar(1)
        (orch.submit_next_level(onward, args) if worker.children else orch.submit_sub(sub, args)).wait()

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        nonlocal most
        kept = share(torch.zeros(SIZE, dtype=torch.uint8))
        one(orch, kept)
        for _ in range(6):
            tensor = share(torch.zeros(SIZE, dtype=torch.uint8))
            one(orch, tensor)
            assert tensor[-1] == 255
            del tensor
            most = max(most, *map(mapped, pids))
        tensors = [share(torch.zeros(SIZE, dtype=torch.uint8)) for _ in range(4)]
        for tensor in tensors:
            one(orch, tensor)
        del tensor
        references = [weakref.ref(tensor) for tensor in tensors]
        tensors.clear()
        assert [reference() for reference in references] == [None] * 4, "nothing of ours keeps them"
        # No further task comes.
        wait_until(lambda: max(map(mapped, pids)) <= SIZE, "the end of all mappings but one")
        one(orch, kept)
        assert kept[0] == 0

    worker.run(build)
    assert SIZE < most <= 3 * SIZE


def test_of_a_task_that_is_over_only_the_record_is_kept(worker: Worker) -> None:
    if worker.children:
        pytest.skip("counts objects of this process; those of the worker below are in a process of its own")
    handle = worker.register(levels_tasks.nothing)
    kinds = (Node, GraphTask, Member)

    def count() -> int:
        gc.collect()
        # By identity: other tests leave classes that refuse to be compared.
        return sum(any(type(found) is kind for kind in kinds) for found in gc.get_objects())

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        before = count()
        for _ in range(20):
            with orch.scope():
                ref = [orch.submit_sub(handle) for _ in range(10)][-1]
            ref.wait()
        del ref
        wait_until(lambda: count() <= before + 3 * len(kinds), "the end of all tasks")

    run = worker.submit(build)
    run.wait()

    assert [record.ok for record in run.records] == [True] * 200
    assert [record.id for record in run.records] == sorted(record.id for record in run.records)
