"""The private parts of torch that shared memory needs, each of which has a contract test.

torch has no public way to name a storage, or to send one to another process over a channel of one's own.
"""

from __future__ import annotations

import atexit
import itertools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def map_storage(fd: int, size: int) -> torch.UntypedStorage:
    """The first ``size`` bytes of a file as a storage in shared memory; ``fd`` can be closed afterwards."""
    import torch

    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared_fd_cpu(fd, size)  # type: ignore[attr-defined]
    return storage


def descriptor_of(storage: torch.UntypedStorage) -> tuple[int, int]:
    """The file of a storage in shared memory, which the storage keeps open, and its size in bytes."""
    fd, size = storage._share_fd_cpu_()
    return fd, size


def shared_descriptor(storage: torch.UntypedStorage) -> tuple[int, int] | None:
    """As ``descriptor_of``; ``None`` for private memory, and for mappings of files, whose file torch has closed."""
    if not storage.is_shared():
        return None
    fd, size = descriptor_of(storage)
    return None if fd < 0 else (fd, size)


class StorageIds:
    """A number for every storage that is alive. Numbers are never used again, although addresses are. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._known: dict[int, tuple[Any, int]] = {}
        self._limit = 128

    def __len__(self) -> int:
        return len(self._known)

    def id_of(self, storage: torch.UntypedStorage) -> int:
        """The same for all storage objects of one memory."""
        from torch.multiprocessing import reductions

        with self._lock:
            # The weak reference keeps the address from being used again: what is found is the same storage.
            found = self._known.get(storage._cdata)
            if found is None:
                make_reference: Any = reductions.StorageWeakRef
                found = self._known[storage._cdata] = make_reference(storage), next(self._numbers)
                if len(self._known) > self._limit:
                    self._known = {at: known for at, known in self._known.items() if not known[0].expired()}
                    self._limit = max(128, 2 * len(self._known))
            return found[1]

    def forget(self) -> None:
        """Let go of all references, whose end needs torch."""
        with self._lock:
            self._known.clear()


_ids = StorageIds()
# Before the interpreter takes torch's modules to pieces.
atexit.register(_ids.forget)


def storage_id(tensor: torch.Tensor) -> int:
    """A number of the memory that a tensor is a view of; no other memory of this process ever has it."""
    return _ids.id_of(tensor.untyped_storage())
