"""Tensors of every kind through real workers, against a call in this process; a bad one harms no other task."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import levels_tensor_tasks
import pytest
import torch
from levels_stage import run_one
from levels_tensor_tasks import as_bytes, share

from pytest_aorta.runtime import CallableHandle, Orchestrator, SlotArgs, Tag, TaskArgs, TaskRef, Worker
from pytest_aorta.runtime.tensors import descriptor_of

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

#: Everything from here on is passed as INPUT, INOUT and OUTPUT, except where a write would be refused.
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bool,
    torch.complex64,
    torch.complex32,
    torch.uint16,
    torch.int64,
]


def kinds() -> list[torch.Tensor]:
    """Tensors of many kinds in shared memory, with the same content every time."""
    memory = share(torch.arange(64, dtype=torch.int64).to(torch.uint8))
    found = [share(torch.zeros(0)), torch.zeros(0, 3), share(torch.zeros(2, 2))[1:1], share(torch.tensor(3.0))]
    for dtype in DTYPES:
        items = 64 // dtype.itemsize
        whole = torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), 0, (items // 2, 2), (2, 1))
        found += [whole, whole[1:, 0], whole.t(), whole[1, 1]]
    leaf = share(torch.ones(3)).requires_grad_()
    return [*found, leaf, torch.nn.Parameter(share(torch.ones(2, 2))), share(torch.ones(4)).view(2, 2)]


class Hosts:
    """A worker of level 3, or one of level 4 with another one below, on this host or reached by execnet."""

    def __init__(self, worker: Worker, sub: CallableHandle, top: CallableHandle | None) -> None:
        self.worker = worker
        self._sub = sub
        self._top = top

    def submit(self, orch: Orchestrator, args: TaskArgs) -> Any:
        """A task that inverts all bits of its tensors: of the first as many as the scalar says."""
        return orch.submit_sub(self._sub, args) if self._top is None else orch.submit_next_level(self._top, args)


@pytest.fixture(
    scope="module",
    params=[
        "slots",
        pytest.param("worker below", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("other host", marks=pytest.mark.slow),
    ],
)
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    if request.param == "slots":
        with Worker(3, num_sub_workers=1) as worker:
            yield Hosts(worker, worker.register(levels_tensor_tasks.invert), None)
        return
    with Worker(4) as worker:
        worker.add_worker(Worker(3, num_sub_workers=1), host="popen" if request.param == "other host" else None)
        sub = worker.register(levels_tensor_tasks.invert)
        yield Hosts(worker, sub, worker.register(levels_tensor_tasks.Onward(sub)))


def plain_call(tensors: list[torch.Tensor], changed: int) -> list[Any]:
    """What the same task would do in this process; the bytes that it sees."""
    seen: list[Any] = levels_tensor_tasks.invert(SlotArgs(tuple(tensors), (changed,)))
    return seen


@pytest.mark.parametrize("tag", [Tag.INPUT, Tag.INOUT, Tag.OUTPUT, Tag.OUTPUT_EXISTING])
def test_every_kind_is_what_it_would_be_in_this_process(hosts: Hosts, tag: Tag) -> None:
    ours, theirs = kinds(), kinds()
    seen, expected = [], []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        for mine, other in zip(ours, theirs, strict=True):
            args = TaskArgs().add(mine, tag).add_scalar(int(tag.writes))
            seen.append(hosts.submit(orch, args).wait())
            expected.append(plain_call([other], int(tag.writes)))

    hosts.worker.run(build)

    assert [record.failure for record in seen] == [None] * len(ours)
    for mine, other in zip(ours, theirs, strict=True):
        assert as_bytes(mine).tolist() == as_bytes(other).tolist()
    assert [record.payload for record in seen] == expected


def test_private_memory_and_views_of_one_memory_are_read_as_they_are(hosts: Hosts) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    tensors = [base, base[1:], base[:, 2], base[0, 0], base.t(), base[:1].expand(3, 6), torch.zeros(0), base[::2, ::3]]
    args = TaskArgs().add_scalar(0)
    for tensor in [*tensors, *(share(tensor.clone()) for tensor in tensors)]:
        args.add(tensor)

    record = run_one(lambda orch: hosts.submit(orch, args), hosts.worker)

    assert record.payload == 2 * [as_bytes(tensor).tolist() for tensor in tensors]


def test_what_cannot_be_sent_fails_alone() -> None:
    """The tasks before and after it run, on the process that was there before."""
    broken, good = share(torch.zeros(4)), share(torch.zeros(4))
    refs: list[TaskRef] = []

    with Worker(3, num_sub_workers=1) as worker:
        invert, pid = worker.register(levels_tensor_tasks.invert), worker.register(levels_tensor_tasks.process)
        worker.init()
        with closed_file(broken):

            def build(orch: Orchestrator, _: Any, config: Any) -> None:
                for _ in range(5):
                    refs.append(orch.submit_sub(pid))
                    for tensor in (broken, torch.zeros(0), good):
                        refs.append(orch.submit_sub(invert, TaskArgs().add(tensor, Tag.INOUT).add_scalar(1)))

            worker.submit(build)
            found = [ref.wait() for ref in refs]

    assert len({record.payload for record in found[::4]}) == 1
    assert [record.ok for record in found] == [True, False, True, True] + 4 * [True, False, True, True]
    assert found[1].failure is not None
    assert found[1].failure.message == (
        "sub_worker 0: RuntimeError: shared memory of 16 bytes cannot be handed over: its file is closed"
    )


@contextlib.contextmanager
def closed_file(tensor: torch.Tensor) -> Iterator[None]:
    """Within, the file of shared memory is closed; afterwards torch has something to close again."""
    fd, _ = descriptor_of(tensor.untyped_storage())
    kept = os.dup(fd)
    os.close(fd)
    try:
        yield
    finally:
        os.dup2(kept, fd)
        os.close(kept)
