"""Memory that was released costs nothing, and what is in use stays what it is."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

import pytest
import torch

from pytest_aorta.runtime.memory import rings
from pytest_aorta.runtime.memory.heap import Heap
from pytest_aorta.runtime.memory.rings import Slab
from pytest_aorta.runtime.memory.torch_storage import descriptor_of

MIB = 2**20


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heap]:
    """A ring of 16 MiB, of which 2 may be kept."""
    monkeypatch.setattr(rings, "MAX_STALE", 2 * MIB)
    heap = Heap(16 * MIB)
    yield heap
    heap.close()


def resident(tensor: torch.Tensor) -> int:
    """Bytes of the ring of a tensor that have pages."""
    fd, _ = descriptor_of(tensor.untyped_storage())
    return 512 * os.fstat(fd).st_blocks


def allocate(heap: Heap, nbytes: int, value: int) -> tuple[torch.Tensor, Slab]:
    tensor, slab = heap.allocate((nbytes,), torch.uint8, 0)
    return tensor.fill_(value), slab


@pytest.mark.parametrize("nbytes", [5000, MIB, 5 * MIB])
def test_a_ring_that_is_never_empty_keeps_few_pages(heap: Heap, nbytes: int) -> None:
    alive: deque[tuple[torch.Tensor, Slab, int]] = deque()
    for number in range(max(12, 40 * MIB // nbytes)):
        tensor, slab = allocate(heap, nbytes, number % 251)
        alive.append((tensor, slab, number % 251))
        if len(alive) > 2:
            _, oldest, _ = alive.popleft()
            heap.release(oldest)
        assert all(int(tensor[0]) == int(tensor[-1]) == value for tensor, _, value in alive)
        assert resident(tensor) <= 3 * nbytes + 2 * MIB + 16 * 4096
    assert all(torch.equal(tensor, torch.full_like(tensor, value)) for tensor, _, value in alive)


def test_an_empty_ring_keeps_few_pages(heap: Heap) -> None:
    for sizes in ([MIB], [6 * MIB, 3 * MIB], [15 * MIB], [MIB] * 12):
        made = [allocate(heap, size, 1) for size in sizes]
        for _, slab in made:
            heap.release(slab)
        assert resident(made[0][0]) <= 2 * MIB
