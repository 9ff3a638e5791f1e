"""Memory that tasks share and that the runtime owns: tensors in rings, reclaimed when no task uses them."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.tensors import Slab, contiguous_strides, from_storage, map_buffer, overwrite, part_of_storage

if TYPE_CHECKING:
    import torch

#: Rings; tasks of a scope use the one of its depth, so that inner scopes can be reclaimed while outer ones live.
RINGS = 4

#: The ring of copies, which live from the submission of a task to its end: memory that lives longer does not delay the
#: return of theirs, nor they that of other memory.
COPIES = RINGS

_ALIGN = 1024

#: Seconds between two looks for tensors that their users have dropped, which nothing announces.
LOOK = 0.1


class _Ring:
    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        #: Bytes of the slabs that are not free.
        self.used = 0
        self._head = 0
        self._behind: list[Slab] = []
        self._ahead: deque[Slab] = deque()
        #: Slabs whose last tensor has gone, in the middle of anything.
        self.dropping: deque[Slab] = deque()

    def take(self, nbytes: int) -> Slab | None:
        self.reclaim()
        # A slab of no bytes takes room as well, so that no two slabs have one offset.
        size = max(1, -(-nbytes // _ALIGN)) * _ALIGN
        behind = self._behind
        for _ in range(2 if self.used + size <= self.size else 0):  # up to the end, and once more from the start
            while behind and behind[-1].free:  # an empty ring uses the same pages again
                behind.pop()
                self._head = behind[-1].offset + behind[-1].size if behind else 0
            while True:
                while self._ahead and self._ahead[0].free:
                    self._ahead.popleft()
                if self._head + size <= (self._ahead[0].offset if self._ahead else self.size):
                    slab = Slab(self.number, self._head, size)
                    behind.append(slab)
                    self._head += size
                    self.used += size
                    return slab
                if not self._ahead:
                    break
                behind.append(self._ahead.popleft())
                self._head = behind[-1].offset + behind[-1].size
            self._ahead.extend(behind)
            behind.clear()
            self._head = 0
        return None

    def reclaim(self) -> None:
        while self.dropping:
            slab = self.dropping.popleft()
            slab.dropped = True
            self.used -= slab.size * slab.released

    def release(self, slab: Slab) -> None:
        self.reclaim()
        slab.released = True
        self.used -= slab.size * slab.dropped

    @property
    def held(self) -> int:
        """Bytes that only tensors of the user keep."""
        return sum(slab.size for slab in (*self._behind, *self._ahead) if slab.released and not slab.dropped)


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
        self._buffers: dict[int, Any] = {}

    def in_use(self, ring: int) -> int:
        with self._changed:
            self._rings[ring].reclaim()
            return self._rings[ring].used

    def allocate(self, shape: Sequence[int], dtype: torch.dtype | None, depth: int) -> tuple[torch.Tensor, Slab]:
        """A tensor whose content is undefined (default: float32); waits while its ring is full.

        Raises:
            ValueError: it is larger than a ring.
            RuntimeError: nothing has been released in time, or the heap is closed.
        """
        import torch

        dtype = dtype or torch.float32
        nbytes = math.prod(shape) * dtype.itemsize
        slab = self._take(min(depth, RINGS - 1), nbytes, self._patience)
        return self._tensor(slab, nbytes, shape, contiguous_strides(shape), dtype), slab

    def copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Slab] | None:
        """A copy of a tensor that is not empty; ``None`` where it is large, or there is no room for it now."""
        if 8 * tensor.nbytes > self._size:
            return None
        try:
            content = tensor.detach().contiguous()
            slab = self._take(COPIES, content.nbytes, 0.0)
        except (RuntimeError, NotImplementedError):  # no room; or torch cannot copy every type of its own
            return None
        made = self._tensor(slab, content.nbytes, content.shape, content.stride(), content.dtype)
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
                            f" {room.size - room.used} of {room.size} are free and those not always in one piece, and"
                            f" tensors that you hold beyond their scope keep {room.held}; raise heap_ring_size, drop"
                            " these, or release older allocations with orch.scope()"
                        )
                    self._changed.wait(min(left, LOOK))
            finally:
                self.waiting -= 1

    def _tensor(
        self, slab: Slab, nbytes: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        try:
            storage = part_of_storage(self._buffer(slab.ring), slab.offset, nbytes, slab)
            # The callback comes when the last tensor is gone, in the middle of anything.
            weakref.finalize(storage, self._rings[slab.ring].dropping.append, slab).atexit = False
            return from_storage(storage, 0, shape, strides, dtype)
        except BaseException:
            slab.dropped = True
            self.release(slab)
            raise

    def _buffer(self, ring: int) -> Any:
        with self._changed:
            if ring not in self._buffers:
                fd = os.memfd_create(f"aorta-ring-{ring}")
                try:
                    os.ftruncate(fd, self._size)
                    self._buffers[ring] = map_buffer(fd, self._size)
                finally:
                    os.close(fd)
            return self._buffers[ring]

    def release(self, slab: Slab) -> None:
        with self._changed:
            self._rings[slab.ring].release(slab)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._buffers.clear()
            self._changed.notify_all()
