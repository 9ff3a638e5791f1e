"""The sending side of tensors towards a process of this host, and what of them that process has mapped.

A storage goes there once, as a file descriptor; from then on both sides call it by a number. It is unmapped there when
its last tensor is gone here, when the run has ended, or when the process has too much mapped.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.memory.tensor_bytes import dtype_name, share
from pytest_aorta.runtime.memory.torch_storage import shared_descriptor, storage_id
from pytest_aorta.runtime.memory.transfer import EMPTY, Arguments, EncodedArgs, Message, pickled

if TYPE_CHECKING:
    import torch

#: Bytes that a process keeps mapped; beyond them, what it has not used for ``RECENT`` tasks is unmapped.
MAX_MAPPED = 2**30
RECENT = 16

#: What a storage counts for besides its size: the kernel bounds the number of mappings of a process, too (65530).
_MAPPING = 2**16

#: Bytes whose last tensor is gone from which on they are unmapped at once, and not with the next task.
MAX_DEAD = 2**24

#: Errors of a socket whose other end is gone, or that is closed. Others (too many open files, no memory) concern only
#: what was to be sent.
GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.EBADF)


@dataclass(slots=True)
class _Mapped:
    """A storage that the other side knows; ``used``: the number of the last task that was sent with it."""

    number: int
    size: int
    used: int
    reference: weakref.ref[torch.UntypedStorage]


class Sender:
    """Knows the storages that one process has mapped, and keeps none of them alive.

    All methods are called by one thread at a time.

    Args:
        send: sends a message.
        send_fd: sends a descriptor.
        many_dead: called when ``release_dead`` should be, by any thread, at any place: it may take no lock.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        send_fd: Callable[[int], None],
        many_dead: Callable[[], object] = lambda: None,
    ) -> None:
        self._send = send
        self._send_fd = send_fd
        self._many_dead = many_dead
        #: By the storage's id, the least recently used one first.
        self._mapped: OrderedDict[int, _Mapped] = OrderedDict()
        self._bytes = 0
        #: Ids of storages that are gone.
        self._dead: deque[int] = deque()
        self._dead_bytes = 0
        #: Copies that were made for the last task, which must live until that has them.
        self._copies: list[torch.Tensor] = []
        self._numbers = 0
        self._tasks = 0

    @property
    def mapped_bytes(self) -> int:
        """Bytes of all storages that the other side has mapped."""
        return self._bytes

    def encode(self, args: Arguments | None, config: Any) -> EncodedArgs:
        """Encode the arguments of a task; storages that the other side has not mapped yet are sent ahead.

        When this raises, nothing has changed for tasks that were sent, or will be.

        Raises:
            OSError: the other side is gone.
            Exception: these arguments cannot be sent.
        """
        encoded: EncodedArgs = {"config": pickled(config)}
        if args is None:
            return encoded
        self._tasks += 1
        tensors, copies = [], []
        for tensor in args.tensors:
            copied = tensor.numel() and shared_descriptor(tensor.untyped_storage()) is None
            if copied:
                copies.append(_copy(tensor))
            tensors.append(copies[-1] if copied else tensor)
        self._copies = copies
        self.release_dead()
        encoded["tensors"] = [
            [self._number(tensor), tensor.storage_offset(), [*tensor.shape], [*tensor.stride()], dtype_name(tensor)]
            for tensor in tensors
        ]
        encoded["scalars"] = list(args.scalars)
        if self._bytes > MAX_MAPPED:
            self._unmap_oldest()
        return encoded

    def _number(self, tensor: torch.Tensor) -> int:
        """What the other side calls the storage of a tensor."""
        if not tensor.numel():
            return EMPTY
        identity = storage_id(tensor)
        known = self._mapped.get(identity)
        if known is None:
            known = self._map(identity, tensor.untyped_storage())
        known.used = self._tasks
        self._mapped.move_to_end(identity)
        return known.number

    def _map(self, identity: int, storage: torch.UntypedStorage) -> _Mapped:
        descriptor = shared_descriptor(storage)
        assert descriptor is not None
        fd, size = descriptor
        number = self._numbers
        self._numbers += 1
        try:
            os.fstat(fd)
        except OSError as error:
            raise RuntimeError(f"shared memory of {size} bytes cannot be handed over: its file is closed") from error
        try:
            self._send({"op": "map", "storage": number, "bytes": size})
            self._send_fd(fd)
        except OSError as error:
            if error.errno in GONE:
                raise
            raise RuntimeError(f"shared memory of {size} bytes cannot be handed over: {error}") from error
        reference = weakref.ref(storage, lambda _: self._died(identity, size))
        self._mapped[identity] = known = _Mapped(number, size, self._tasks, reference)
        self._bytes += size + _MAPPING
        return known

    def _died(self, identity: int, size: int) -> None:
        """The last tensor of a storage is gone. Called by the interpreter, in the middle of anything."""
        self._dead.append(identity)
        self._dead_bytes += size
        if self._dead_bytes >= MAX_DEAD:
            self._many_dead()

    def release_dead(self) -> None:
        """Have the other side unmap storages that are gone here."""
        identities = [self._dead.popleft() for _ in range(len(self._dead))]
        self._dead_bytes = 0
        self._unmap([identity for identity in identities if identity in self._mapped])

    def _unmap_oldest(self) -> None:
        left, chosen = self._bytes, []
        for identity, known in self._mapped.items():
            if left <= MAX_MAPPED or known.used > self._tasks - RECENT:
                break
            left -= known.size + _MAPPING
            chosen.append(identity)
        self._unmap(chosen)

    def _unmap(self, identities: list[int]) -> None:
        if not identities:
            return
        found = [self._mapped.pop(identity) for identity in identities]
        self._bytes -= sum(known.size + _MAPPING for known in found)
        self._send({"op": "unmap", "storages": [known.number for known in found]})

    def forget(self) -> None:
        """Have the other side unmap all storages."""
        self._copies = []
        self._dead.clear()
        self._unmap(list(self._mapped))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return share(tensor)
    except OSError as error:
        raise RuntimeError(f"a tensor of {tensor.nbytes} bytes cannot be copied to shared memory: {error}") from error
