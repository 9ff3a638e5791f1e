"""Memory that tasks share and that the runtime owns: tensors in rings, reclaimed when nobody needs them."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.memory.rings import HeapRings, Slab

if TYPE_CHECKING:
    import torch

#: Rings; tasks of a scope use the one of its depth, so that inner scopes can be reclaimed while outer ones live.
RINGS = 4


class Heap:
    """``RINGS`` areas of ``size`` bytes. The memory is asked for with the first tensor, and used page by page."""

    def __init__(self, size: int, patience: float = 10.0) -> None:
        self.rings = HeapRings(size, RINGS, patience=patience)
        self._size = size
        self._lock = threading.Lock()
        self._storages: dict[int, Any] = {}

    def allocate(self, shape: Sequence[int], dtype: torch.dtype | None, depth: int) -> tuple[torch.Tensor, Slab]:
        """A tensor whose content is undefined (default: float32); blocks while the ring is full."""
        import torch

        dtype = dtype or torch.float32
        count = 1
        for length in shape:
            count *= length
        slab = self.rings.allocate(min(depth, RINGS - 1), max(1, count * dtype.itemsize))
        try:
            strides = torch.empty(tuple(shape), dtype=dtype, device="meta").stride()
            tensor = torch.empty(0, dtype=dtype)
            tensor.set_(self._storage(slab.ring), slab.offset // dtype.itemsize, tuple(shape), strides)
        except BaseException:
            self.rings.release(slab)
            raise
        return tensor, slab

    def release(self, slab: Slab) -> None:
        """Nobody needs it any more."""
        self.rings.release(slab)

    def _storage(self, ring: int) -> Any:
        with self._lock:
            if ring not in self._storages:
                import torch

                fd = os.memfd_create(f"aorta-ring-{ring}")
                try:
                    os.ftruncate(fd, self._size)
                    self._storages[ring] = torch.UntypedStorage._new_shared_fd_cpu(fd, self._size)  # type: ignore[attr-defined]
                finally:
                    os.close(fd)
            return self._storages[ring]

    def close(self) -> None:
        """Wake whoever waits for memory."""
        self.rings.close()
        self._storages.clear()
