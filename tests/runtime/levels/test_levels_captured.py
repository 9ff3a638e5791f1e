"""Memory that a callable captures: the same bytes in every process, or a refusal that says what to do."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import struct
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from levels_stage import open_files, run_next, run_sub
from levels_tensor_tasks import share

from pytest_aorta.runtime import Orchestrator, Worker


@pytest.fixture
def shm() -> Iterator[SharedMemory]:
    shm = SharedMemory(create=True, size=4096)
    assert shm.buf is not None
    shm.buf[:] = bytes(4096)
    yield shm
    shm.unlink()
    with contextlib.suppress(BufferError):  # views of it are left in a traceback
        shm.close()


@pytest.mark.slow
def test_what_tasks_write_to_captured_shared_memory_is_seen_here_and_in_other_slots(
    shm: SharedMemory, tmp_path: Path
) -> None:
    assert shm.buf is not None
    (tmp_path / "mapped").write_bytes(bytes(8192))
    buffer = shm.buf
    whole: Any = np.ndarray((4, 8), np.int64, shm.buf, 64)
    views: list[Any] = [
        whole[1:3, 6::-2],
        np.memmap(tmp_path / "mapped", np.int64, "r+", 4096, (4,)),
        torch.from_numpy(whole[3]),
        share(torch.zeros(3, dtype=torch.int64))[1:],
    ]
    number = ctypes.c_int64.from_buffer(shm.buf, 1024)
    module = torch.nn.Linear(2, 1)
    module.share_memory()

    def count(args: Any) -> bool:
        for view in views:
            view[...] += 1
        number.value += 1
        struct.pack_into("q", buffer, 2048, struct.unpack_from("q", buffer, 2048)[0] + 1)
        assert shm.buf is not None
        shm.buf[3000] += 1
        with torch.no_grad():
            module.weight.fill_(module.weight[0, 0].item() + 1)
        return isinstance(module.weight, torch.nn.Parameter)

    module.weight.data.zero_()
    with Worker(3, num_sub_workers=2) as worker:
        handle = worker.register(count)
        assert worker.register(count).digest == handle.digest
        for _ in range(3):
            assert run_sub(worker, handle).payload
    assert [int(view.min()) for view in views] == [3] * 4
    assert [int(view.max()) for view in views] == [3] * 4
    assert int(whole.sum()) == 3 * (8 + 8)
    assert (number.value, struct.unpack_from("q", buffer, 2048)[0], shm.buf[3000]) == (3, 3, 3)
    assert module.weight.tolist() == [[3, 3]]
    views.clear()


@pytest.mark.slow
def test_it_is_the_same_two_levels_below_and_let_go_with_the_callable(shm: SharedMemory) -> None:
    # One each: the two run at once, and neither adds atomically.
    counters: Any = np.ndarray(2, np.int64, shm.buf)

    def count(args: Any) -> None:
        counters[0] += 1

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        orch.submit_sub(inner)
        counters[1] += 10

    below = Worker(3, num_sub_workers=1)
    inner = below.register(count)
    with Worker(4) as worker:
        worker.add_worker(below)
        worker.init()
        before = open_files()
        handle = worker.register(build)
        assert run_next(worker, handle).ok
        worker.unregister(handle)
        assert open_files() == before
    assert counters.tolist() == [1, 10]


def anonymous() -> Any:
    return np.frombuffer(mmap.mmap(-1, 4096), np.uint8)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (anonymous, "shared memory without a file that is open .* cannot be captured"),
        (lambda: multiprocessing.Value("i"), "only be shared between processes through inheritance"),
        (multiprocessing.Lock, "only be shared between processes through inheritance"),
        (lambda: mmap.mmap(-1, 4096), "cannot pickle"),
    ],
)
def test_what_no_other_process_can_map_is_refused_with_the_remedy(make: Callable[[], Any], why: str) -> None:
    captured = make()
    with pytest.raises(TypeError, match=rf"{why}.*SharedMemory"):
        Worker(3, num_sub_workers=1).register(lambda args: captured)


@pytest.mark.slow
def test_memory_of_the_runtime_is_passed_and_not_captured() -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        own = orch.alloc([4])
        with pytest.raises(TypeError, match="pass it in TaskArgs"):
            worker.register(lambda args: own)
        array = own.numpy()
        with pytest.raises(TypeError, match="pass it in TaskArgs"):
            worker.register(lambda args: array)

    with Worker(3, num_sub_workers=1) as worker:
        worker.run(build)
