"""Memory that tasks share and that the runtime owns: tensors in rings, reclaimed when no task uses them."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_aorta.runtime.tensors import contiguous_strides, from_storage, map_storage, overwrite

if TYPE_CHECKING:
    import torch

#: Rings; tasks of a scope use the one of its depth, so that inner scopes can be reclaimed while outer ones live.
RINGS = 4

#: The ring of copies, which live from the submission of a task to its end: memory that lives longer does not delay the
#: return of theirs, nor they that of other memory.
COPIES = RINGS

_ALIGN = 1024


@dataclass(eq=False)
class Slab:
    """``nbytes`` bytes from ``offset`` of a ring, up to the position ``stop``."""

    ring: int
    offset: int
    nbytes: int
    stop: int
    released: bool = False


class _Ring:
    """Handed out in order, and taken back in order: a slab that is released before older ones comes back with those.

    Positions grow for ever; position modulo size is the offset. What is in use lies between tail and head.
    """

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self._slabs: deque[Slab] = deque()
        self._head = 0
        self._tail = 0

    @property
    def in_use(self) -> int:
        """Bytes that cannot be allocated now: slabs, rounded up, and released ones behind older ones."""
        return self._head - self._tail

    def take(self, nbytes: int) -> Slab | None:
        """The next slab, if there is room for it."""
        # A slab of no bytes takes room as well, so that no two slabs have one offset.
        rounded = max(1, -(-nbytes // _ALIGN)) * _ALIGN
        start = self._head
        if start % self.size + rounded > self.size:  # nothing straddles the end; what is left there goes with it
            start += self.size - start % self.size
        if start + rounded - self._tail > self.size:
            return None
        self._head = start + rounded
        slab = Slab(self.number, start % self.size, nbytes, self._head)
        self._slabs.append(slab)
        return slab

    def reclaim(self) -> None:
        """Take back what is released."""
        while self._slabs and self._slabs[0].released:
            self._tail = self._slabs.popleft().stop
        if not self._slabs:  # an empty ring has room for its whole size, and uses the same pages again
            self._head = self._tail = 0


class Heap:
    """``RINGS`` rings of ``size`` bytes, and one for copies. Mapped with the first tensor, used page by page.

    Thread-safe. ``allocate`` may block, hence it must be called without any lock that ``release`` needs.
    """

    def __init__(self, size: int, patience: float = 10.0) -> None:
        if size < _ALIGN:
            raise ValueError(f"heap_ring_size must be at least {_ALIGN} bytes, not {size}")
        self._size = size - size % _ALIGN
        self._patience = patience
        self._changed = threading.Condition()
        self._rings = [_Ring(number, self._size) for number in range(RINGS + 1)]
        #: Calls of ``allocate`` that are blocked at this moment.
        self.waiting = 0
        self._closed = False
        self._storages: dict[int, torch.UntypedStorage] = {}

    def in_use(self, ring: int) -> int:
        """Bytes of a ring that cannot be allocated now."""
        return self._rings[ring].in_use

    def allocate(self, shape: Sequence[int], dtype: torch.dtype | None, depth: int) -> tuple[torch.Tensor, Slab]:
        """A tensor whose content is undefined (default: float32); waits while its ring is full.

        Raises:
            ValueError: it is larger than a ring.
            RuntimeError: nothing has been released in time, or the heap is closed.
        """
        import torch

        dtype = dtype or torch.float32
        slab = self._take(min(depth, RINGS - 1), math.prod(shape) * dtype.itemsize, self._patience)
        return self._tensor(slab, shape, contiguous_strides(shape), dtype), slab

    def copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Slab] | None:
        """A copy of a tensor that is not empty; ``None`` where it is large, or there is no room for it now."""
        if 8 * tensor.nbytes > self._size:
            return None
        try:
            content = tensor.detach().contiguous()
            slab = self._take(COPIES, content.nbytes, 0.0)
        except (RuntimeError, NotImplementedError):  # no room; or torch cannot copy every type of its own
            return None
        made = self._tensor(slab, content.shape, content.stride(), content.dtype)
        overwrite(made, content)
        return made, slab

    def _take(self, ring: int, nbytes: int, patience: float) -> Slab:
        room = self._rings[ring]
        if nbytes > room.size:
            raise ValueError(
                f"{nbytes} bytes are more than a whole ring of {room.size}; raise heap_ring_size, or ask for less"
            )
        give_up = time.monotonic() + patience
        with self._changed:
            self.waiting += 1
            try:
                while True:
                    if self._closed:
                        raise RuntimeError("the heap rings are closed")
                    slab = room.take(nbytes)
                    if slab is not None:
                        return slab
                    left = give_up - time.monotonic()
                    if left <= 0:
                        raise RuntimeError(
                            f"ring {ring} is full: waited {patience:g} s for {nbytes} bytes, but"
                            f" {room.size - room.in_use} of {room.size} are free and those not always in one piece;"
                            " raise heap_ring_size, or release older allocations with orch.scope()"
                        )
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
            finally:
                self.waiting -= 1

    def _tensor(self, slab: Slab, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        try:
            return from_storage(self._storage(slab.ring), slab.offset // dtype.itemsize, shape, strides, dtype)
        except BaseException:
            self.release(slab)
            raise

    def _storage(self, ring: int) -> torch.UntypedStorage:
        with self._changed:
            if ring not in self._storages:
                fd = os.memfd_create(f"aorta-ring-{ring}")
                try:
                    os.ftruncate(fd, self._size)
                    self._storages[ring] = map_storage(fd, self._size)
                finally:
                    os.close(fd)
            return self._storages[ring]

    def release(self, slab: Slab) -> None:
        """No task uses it any more."""
        with self._changed:
            slab.released = True
            self._rings[slab.ring].reclaim()
            self._changed.notify_all()

    def close(self) -> None:
        """End the waits for memory."""
        with self._changed:
            self._closed = True
            self._storages.clear()
            self._changed.notify_all()
