"""Memory that tasks share and that the runtime owns: tensors in rings, reclaimed when no task uses them."""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_aorta.runtime.memory.rings import HeapRings, Slab
from pytest_aorta.runtime.memory.tensor_bytes import contiguous_strides, from_storage, overwrite
from pytest_aorta.runtime.memory.torch_storage import map_storage

if TYPE_CHECKING:
    import torch

#: Rings; tasks of a scope use the one of its depth, so that inner scopes can be reclaimed while outer ones live.
RINGS = 4

#: The ring of copies, which live from the submission of a task to its end: memory that lives longer does not delay the
#: return of theirs, nor they that of other memory.
COPIES = RINGS


class Heap:
    """``RINGS`` areas of ``size`` bytes, and one for copies. Mapped with the first tensor, used page by page."""

    def __init__(self, size: int, patience: float = 10.0) -> None:
        self.rings = HeapRings(size, RINGS + 1, patience=patience, discard=self._discard)
        self._size = size
        self._lock = threading.Lock()
        self._storages: dict[int, torch.UntypedStorage] = {}
        #: The same memory once more: torch's mapping has no way to give pages back.
        self._mappings: dict[int, mmap.mmap] = {}

    def allocate(self, shape: Sequence[int], dtype: torch.dtype | None, depth: int) -> tuple[torch.Tensor, Slab]:
        """A tensor whose content is undefined (default: float32); blocks while the ring is full."""
        import torch

        dtype = dtype or torch.float32
        slab = self.rings.allocate(min(depth, RINGS - 1), max(1, math.prod(shape) * dtype.itemsize))
        try:
            tensor = from_storage(
                self._storage(slab.ring), slab.offset // dtype.itemsize, shape, contiguous_strides(shape), dtype
            )
        except BaseException:
            self.rings.release(slab)
            raise
        return tensor, slab

    def copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Slab] | None:
        """A copy of a tensor that is not empty; ``None`` where it is large, or there is no room for it now."""
        if 8 * tensor.nbytes > self._size:
            return None
        try:
            slab = self.rings.allocate(COPIES, tensor.nbytes, patience=0.0)
        except RuntimeError:
            return None
        try:
            content = tensor.detach().contiguous()
            offset, dtype = slab.offset // content.dtype.itemsize, content.dtype
            made = from_storage(self._storage(slab.ring), offset, content.shape, content.stride(), dtype)
            overwrite(made, content)
        except BaseException as error:
            self.rings.release(slab)
            if isinstance(error, RuntimeError | NotImplementedError):  # torch cannot copy every type of its own
                return None
            raise
        return made, slab

    def release(self, slab: Slab) -> None:
        """No task uses it any more."""
        self.rings.release(slab)

    def _storage(self, ring: int) -> torch.UntypedStorage:
        with self._lock:
            if ring not in self._storages:
                fd = os.memfd_create(f"aorta-ring-{ring}")
                try:
                    os.ftruncate(fd, self._size)
                    self._mappings[ring] = mmap.mmap(fd, self._size)
                    self._storages[ring] = map_storage(fd, self._size)
                finally:
                    os.close(fd)
            return self._storages[ring]

    def _discard(self, ring: int, offset: int, nbytes: int) -> None:
        """Give pages back to the kernel; where they are used again, they are zero."""
        mapping = self._mappings.get(ring)
        first, last = -(-offset // mmap.PAGESIZE), (offset + nbytes) // mmap.PAGESIZE
        if mapping is not None and first < last:
            mapping.madvise(mmap.MADV_REMOVE, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)

    def close(self) -> None:
        """End the waits for memory."""
        self.rings.close()
        with self._lock:
            self._storages.clear()
            mappings, self._mappings = self._mappings, {}
        for mapping in mappings.values():
            mapping.close()
