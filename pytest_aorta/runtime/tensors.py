"""Tensors in shared memory: which ones tasks accept, how memory is identified, how other processes map it.

Towards a process of this host, a tensor goes as a view of shared memory: that process opens the memory by the
descriptor that torch keeps here. Towards another host it goes by value. The private parts of torch that this needs are
all in this file, and have contract tests: torch has no public way to name a storage or to map one by a descriptor.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import math
import os
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.graph import Footprint, GraphNode

if TYPE_CHECKING:
    import torch

#: Shape, strides, type and content of a tensor that goes by value; the type as text, which pickle takes in less time.
ByValue = tuple[tuple[int, ...], tuple[int, ...], str, Any]


#: Bytes of a private tensor that go with a task; a larger one goes through shared memory of its own, without a copy.
MAX_WITH_TASK = 2**26


# Which tensors can be passed


def check_kind(tensor: object) -> torch.Tensor:
    """The tensor; the task will see the same values, as a plain tensor without autograd."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, not {tensor!r}")
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        raise TypeError(
            f"a tensor of class {type(tensor).__module__}.{type(tensor).__qualname__} cannot be passed: what the class"
            " adds would be lost; pass the plain tensors that it is made of"
        )
    if torch._C._dispatch_keys(tensor).raw_repr() != _plain_keys():
        _check_layout(tensor)
    try:
        held = tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError) as error:
        raise TypeError(
            "a tensor without memory of its own cannot be passed, such as those within torch.func transforms"
        ) from error
    if tensor.numel():
        needed = tensor.storage_offset() * tensor.element_size() + _span(tensor)
        if needed > held:
            raise ValueError(f"the tensor needs {needed} bytes of its storage, which has {held}: was it resized?")
    return tensor


@cache
def _plain_keys() -> int:
    """What torch dispatches dense CPU tensors by; most others have more or other keys."""
    import torch

    keys: int = torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr()
    return keys


def _check_layout(tensor: torch.Tensor) -> None:
    import torch

    if tensor.layout != torch.strided:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be passed: slots share dense memory only")
    if tensor.is_nested:
        raise TypeError("a nested tensor cannot be passed: slots share dense memory only; pass its parts (.unbind())")
    if tensor.device.type != "cpu":
        raise TypeError(f"a tensor on {tensor.device} cannot be passed: slots share CPU memory only")
    if tensor.is_quantized:
        raise TypeError(
            "a quantized tensor cannot be passed: its scale is not in its memory; pass .int_repr(), or .dequantize()"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(
            "a tensor that is conjugated or negated lazily cannot be passed; call .resolve_conj() or .resolve_neg()"
        )


def check_writable(tensor: torch.Tensor, what: str) -> None:
    """Raise ``ValueError`` for a tensor whose writes others would not see; ``what`` names the tag."""
    if not tensor.numel():
        return
    storage = tensor.untyped_storage()
    if not (storage.is_shared() or "_aorta_part" in vars(storage)):
        raise ValueError(
            f"a tensor that is not in shared memory cannot be {what}, since what a task writes to it is lost;"
            " call .share_memory_() on it, or use orch.alloc"
        )
    if is_private(tensor):
        raise ValueError(
            f"a tensor that maps a file (torch.from_file) cannot be {what}: the mapping cannot be handed to another"
            " process; copy it, and call .share_memory_() on the copy, or use orch.alloc"
        )
    # Whether two items are, or may be, at one place. Sure for all that slicing, transposing and reshaping make.
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                raise ValueError(
                    f"a tensor of which several items are the same memory (shape {tuple(tensor.shape)}, strides"
                    f" {tensor.stride()}, as of .expand()) cannot be {what}: nothing says which of them wins; pass the"
                    " tensor that it is a view of"
                )
            reach += stride * (size - 1)


def is_private(tensor: torch.Tensor) -> bool:
    """Whether a tensor has bytes that only this process sees: private memory, or a file that torch has closed."""
    if not tensor.numel():
        return False
    storage = tensor.untyped_storage()
    if "_aorta_part" in vars(storage):
        return False
    return not storage.is_shared() or descriptor_of(storage)[0] < 0


# Storages


@dataclass(eq=False)
class Slab:
    """``size`` bytes from ``offset`` of a ring. Free once no task uses them and no tensor of theirs is left here."""

    ring: int
    offset: int
    size: int
    #: Its node in the graph, held by the scope that allocated it and by tasks that use it.
    node: GraphNode | None = None
    #: Whether no task uses it any more; whether no tensor does.
    released: bool = False
    dropped: bool = False
    #: The ``TaskRef`` whose output it is.
    reference: weakref.ref[Any] | None = None

    @property
    def stop(self) -> int:
        return self.offset + self.size


def map_storage(fd: int, size: int) -> torch.UntypedStorage:
    import torch

    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared_fd_cpu(fd, size)  # type: ignore[attr-defined]
    return storage


def descriptor_of(storage: torch.UntypedStorage) -> tuple[int, int]:
    """The file of a storage in shared memory, which the storage keeps open (or -1), and its size in bytes."""
    known: tuple[int, int] | None = vars(storage).get("_aorta_file")  # to ask torch takes longer than all else here
    if known is None:
        known = vars(storage)["_aorta_file"] = storage._share_fd_cpu_()
    return known


_numbers = itertools.count()


def storage_id(storage: torch.UntypedStorage) -> int:
    # torch keeps the Python object of a storage for as long as its memory lives.
    number: int | None = vars(storage).get("_aorta_number")
    if number is None:
        number = vars(storage).setdefault("_aorta_number", next(_numbers))
        _mappings.add(storage)
    return number


def slab_of(tensor: torch.Tensor) -> Slab | None:
    """The memory of the runtime that a tensor is a view of."""
    part = vars(tensor.untyped_storage()).get("_aorta_part")
    return None if part is None else part[2]


class _Mappings:
    """Storages of tasks by address, because NumPy and DLPack make new storages over the same bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._storages: dict[int, weakref.ref[Any]] = {}
        self._dead: deque[int] = deque()

    def add(self, storage: torch.UntypedStorage) -> None:
        start = storage.data_ptr()
        with self._lock:
            self._forget_dead()
            if start not in self._storages:
                bisect.insort(self._starts, start)
            # The callback comes in the middle of anything.
            self._storages[start] = weakref.ref(storage, lambda _: self._dead.append(start))

    def _forget_dead(self) -> None:
        while self._dead:
            start = self._dead.popleft()
            if start in self._storages and self._storages[start]() is None:
                del self._storages[start], self._starts[bisect.bisect_left(self._starts, start)]

    def at(self, address: int) -> torch.UntypedStorage | None:
        with self._lock:
            self._forget_dead()
            place = bisect.bisect_right(self._starts, address) - 1
            storage: torch.UntypedStorage | None = self._storages[self._starts[place]]() if place >= 0 else None
            if storage is None or not 0 <= address - storage.data_ptr() < storage.nbytes():
                return None
            return storage


_mappings = _Mappings()


def original(tensor: torch.Tensor) -> torch.Tensor:
    """The same view over the storage that tasks know, or the tensor itself if its bytes are in no such storage."""
    own = tensor.untyped_storage()
    if own.is_shared() or "_aorta_part" in vars(own) or not tensor.numel():
        return tensor
    storage = _mappings.at(tensor.data_ptr())
    if storage is None:
        return tensor
    offset, rest = divmod(tensor.data_ptr() - storage.data_ptr(), tensor.element_size())
    if rest:
        raise ValueError("a tensor lies across the items of the shared tensor whose memory it is: pass that one")
    return from_storage(storage, offset, tensor.shape, tensor.stride(), tensor.dtype)


def footprint_of(tensor: torch.Tensor) -> Footprint:
    """The bytes that a dense tensor touches. Views share a backing when they share a storage. Thread-safe."""
    itemsize = tensor.element_size()
    strides: Sequence[int] = tensor.stride()
    return Footprint(
        backing=("storage", storage_id(tensor.untyped_storage())),
        offset=int(tensor.storage_offset()) * itemsize,
        shape=tuple(tensor.shape),
        strides=tuple(stride * itemsize for stride in strides),
        itemsize=itemsize,
    )


# Bytes: torch does not copy, or even print, every one of its types.

#: Bytes from which on a message goes through a file in memory instead of a socket.
BULK = 2**16


def apart(value: Any) -> Any:
    """Large bytes such that they are not copied into the pickle of their message."""
    return pickle.PickleBuffer(value) if isinstance(value, bytes) and len(value) >= BULK else value


def from_storage(
    storage: torch.UntypedStorage, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    import torch

    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, tuple(shape), tuple(strides))


def _byte_view(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    size = tensor.element_size()
    strides = (*(stride * size for stride in tensor.stride()), 1)
    view = torch.empty(0, dtype=torch.uint8, device="cpu")
    return view.set_(tensor.untyped_storage(), tensor.storage_offset() * size, (*tensor.shape, size), strides)


def _span(tensor: torch.Tensor) -> int:
    if tensor.is_contiguous():
        return tensor.nbytes
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def _packed(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A tensor whose span has few bytes but its own, and its strides: it itself, or a dense copy.

    So an expanded tensor stays as small as it is, and a column does not take the whole matrix along.
    """
    if _span(tensor) <= tensor.nbytes:
        return tensor, tuple(tensor.stride())
    strides = tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.dim()))
    return _byte_view(tensor).reshape(-1).contiguous(), strides


def _flat(tensor: torch.Tensor) -> Any:
    """The bytes of the span of a tensor as an array, which keeps it."""
    import numpy as np

    interface = {"version": 3, "shape": (_span(tensor),), "typestr": "|u1", "data": (tensor.data_ptr(), False)}
    return np.asarray(SimpleNamespace(__array_interface__=interface, keeps=tensor))


def share(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in shared memory, without autograd; of an empty tensor, any copy."""
    if not tensor.numel():
        return tensor.detach().clone()
    import torch

    packed, strides = _packed(tensor)
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(_span(packed))  # type: ignore[no-untyped-call]
    copy = from_storage(storage, 0, tensor.shape, strides, tensor.dtype)
    _flat(copy)[:] = _flat(packed)
    return copy


def to_bytes(tensor: torch.Tensor) -> ByValue:
    if not tensor.numel():
        return tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype), b""
    packed, strides = _packed(tensor)
    # Not copied until it is pickled.
    return tuple(tensor.shape), strides, str(tensor.dtype), pickle.PickleBuffer(_flat(packed))


@cache
def _type_of(text: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, text.removeprefix("torch."))
    return dtype


def from_bytes(shape: Sequence[int], strides: Sequence[int], dtype: str, content: Any) -> torch.Tensor:
    """The reverse of ``to_bytes``, once its content is pickled: a tensor in memory of its own."""
    import torch

    if content == b"":
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=_type_of(dtype), device="cpu")
    flat = torch.frombuffer(content if isinstance(content, bytearray) else bytearray(content), dtype=_type_of(dtype))
    return flat if flat.shape == shape else flat.as_strided(shape, strides)


def snapshot(tensor: torch.Tensor) -> torch.Tensor | ByValue:
    """A copy for a task: one that goes with its message, or a large one in shared memory, a file of its own."""
    if tensor.nbytes > MAX_WITH_TASK < _span(tensor):
        return share(tensor)
    packed, strides = _packed(tensor)
    content = ctypes.string_at(packed.data_ptr(), _span(packed))
    return tuple(tensor.shape), strides, str(tensor.dtype), apart(content)


def overwrite(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Copy the content of a tensor of the same shape and type, bypassing autograd."""
    if tensor.numel():
        _byte_view(tensor).copy_(_byte_view(content))


# Between processes of one host

#: Number, descriptor and size of the storage (or ``None`` without items), and offset, shape, strides, type of a view.
View = tuple["tuple[int, int, int] | None", int, tuple[int, ...], tuple[int, ...], str]


class SharedViews:
    """Sender's record of storages that one process may have mapped; keeps none of them alive."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}
        self._dead: deque[int] = deque()

    def view(self, tensor: torch.Tensor | ByValue) -> View | ByValue:
        """A message from which the other process rebuilds the view; a copy goes as it is."""
        if isinstance(tensor, tuple):
            return tensor
        offset, layout = int(tensor.storage_offset()), (tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype))
        if not tensor.numel():
            return (None, offset, *layout)
        storage = tensor.untyped_storage()
        if "_aorta_part" in vars(storage):
            storage, start, _ = vars(storage)["_aorta_part"]
            offset += start // tensor.element_size()
        number = storage_id(storage)
        fd, size = descriptor_of(storage)
        if number not in self._known:
            try:
                os.fstat(fd)
            except OSError as error:
                why = f"shared memory of {size} bytes cannot be handed over: its file is closed"
                raise RuntimeError(why) from error
            # The callback comes when the last tensor is gone, in the middle of anything.
            self._known[number] = weakref.ref(storage, lambda _: self._dead.append(number))
        return ((number, fd, size), offset, *layout)

    def dead(self) -> list[int]:
        """Numbers of storages that are gone since the last call, and that the other process should unmap."""
        numbers = [self._dead.popleft() for _ in range(len(self._dead))]
        return [number for number in numbers if self._known.pop(number, None) is not None]

    def forget(self) -> list[int]:
        """Numbers of all storages: the other process should unmap them."""
        numbers = list(self._known)
        self._known.clear()
        self._dead.clear()
        return numbers


class MappedStorages:
    """Receiver's mapped storages of the process ``owner``, by number."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._storages: dict[int, torch.UntypedStorage] = {}

    def tensor(self, view: View | ByValue) -> torch.Tensor:
        """The tensor; raises ``RuntimeError`` where its memory cannot be mapped."""
        import torch

        if len(view) == 4:
            return from_bytes(*view)
        where, offset, shape, strides, dtype = view
        if where is None:
            return torch.empty_strided(shape, strides, dtype=_type_of(dtype), device="cpu")
        number, fd, size = where
        if number not in self._storages:
            try:
                own = os.open(f"/proc/{self._owner}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
                try:
                    self._storages[number] = map_storage(own, size)
                finally:
                    os.close(own)
            except Exception as error:
                raise RuntimeError(f"memory of {size} bytes could not be mapped: {error}") from error
        return from_storage(self._storages[number], offset, shape, strides, _type_of(dtype))

    def unmap(self, numbers: Sequence[int]) -> None:
        """Unmap storages; the memory stays for as long as a task has a view of it."""
        for number in numbers:
            self._storages.pop(number, None)


#: Rings; tasks of a scope use the one of its depth, so that inner scopes can be reclaimed while outer ones live.
RINGS = 4

_ALIGN = 1024

#: Seconds between two looks for tensors that their users have dropped, which nothing announces.
LOOK = 0.1


class _Ring:
    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        #: Bytes of the slabs that are not free.
        self.used = 0
        #: Slabs in the order of their offsets.
        self._slabs: list[Slab] = []
        #: Slabs whose last tensor has gone, in the middle of anything.
        self.dropping: deque[Slab] = deque()

    def take(self, nbytes: int) -> Slab | None:
        self.reclaim()
        # A slab of no bytes takes room as well, so that no two slabs have one offset.
        size = max(1, -(-nbytes // _ALIGN)) * _ALIGN
        slabs = self._slabs
        place, offset = len(slabs), slabs[-1].stop if slabs else 0
        if offset + size > self.size:  # no room behind the last one: the first gap
            place, offset = 0, 0
            while place < len(slabs) and slabs[place].offset - offset < size:
                offset = slabs[place].stop
                place += 1
            if place == len(slabs):
                return None
        slab = Slab(self.number, offset, size)
        slabs.insert(place, slab)
        self.used += size
        return slab

    def reclaim(self) -> None:
        while self.dropping:
            slab = self.dropping.popleft()
            slab.dropped = True
            self._free(slab)

    def release(self, slab: Slab) -> None:
        self.reclaim()
        slab.released = True
        self._free(slab)

    def _free(self, slab: Slab) -> None:
        if slab.released and slab.dropped:
            del self._slabs[bisect.bisect_left(self._slabs, slab.offset, key=lambda other: other.offset)]
            self.used -= slab.size

    def held(self) -> tuple[int, list[Any]]:
        """Bytes kept only by the user's tensors, and the references that keep some of them."""
        held = [slab for slab in self._slabs if slab.released and not slab.dropped]
        references = [slab.reference() for slab in held if slab.reference is not None]
        return sum(slab.size for slab in held), [ref for ref in references if ref is not None]


class Heap:
    """``RINGS`` rings of ``size`` bytes. Mapped with the first tensor, used page by page.

    Thread-safe. ``allocate`` may block, hence it must be called without any lock that ``release`` needs.
    """

    def __init__(self, size: int, patience: float = 10.0) -> None:
        if size < _ALIGN:
            raise ValueError(f"heap_ring_size must be at least {_ALIGN} bytes, not {size}")
        self._size = size - size % _ALIGN
        self._patience = patience
        self._changed = threading.Condition()
        self._rings = [_Ring(number, self._size) for number in range(RINGS)]
        self._closed = False
        self._buffers: dict[int, Any] = {}

    def in_use(self) -> tuple[int, ...]:
        """Bytes in use of each ring."""
        with self._changed:
            for ring in self._rings:
                ring.reclaim()
            return tuple(ring.used for ring in self._rings)

    def allocate(self, blank: torch.Tensor, depth: int) -> tuple[torch.Tensor, Slab]:
        """A tensor of the shape and type of ``blank`` whose content is undefined; waits while its ring is full.

        Raises:
            ValueError: it is larger than a ring.
            RuntimeError: nothing has been released in time, or the heap is closed.
        """
        import torch

        nbytes = blank.nbytes
        slab = self._take(min(depth, RINGS - 1), nbytes)
        try:
            # A storage of its own, which lives as long as any tensor, view or array of these bytes.
            buffer = self._buffer(slab.ring)
            part = torch.frombuffer(buffer, dtype=torch.uint8, count=max(1, nbytes), offset=slab.offset)
            storage = part.untyped_storage()
            vars(storage)["_aorta_part"] = buffer.memory, slab.offset, slab
            # The callback comes when the last tensor is gone, in the middle of anything.
            weakref.finalize(storage, self._rings[slab.ring].dropping.append, slab).atexit = False
            return from_storage(storage, 0, blank.shape, blank.stride(), blank.dtype), slab
        except BaseException:
            slab.dropped = True
            self.release(slab)
            raise

    def _take(self, ring: int, nbytes: int) -> Slab:
        room = self._rings[ring]
        if nbytes > room.size:
            raise ValueError(
                f"{nbytes} bytes are more than a whole ring of {room.size}; raise heap_ring_size, or ask for less"
            )
        give_up = time.monotonic() + self._patience
        with self._changed:
            while not self._closed:
                slab = room.take(nbytes)
                if slab is not None:
                    return slab
                left = give_up - time.monotonic()
                if left <= 0:
                    held, references = room.held()
                    names = ", ".join(map(str, references[:3])) + (", ..." if references[3:] else "")
                    which = f" ({len(references)} are the outputs of references: {names})" if references else ""
                    raise RuntimeError(
                        f"ring {ring} is full: waited {self._patience:g} s for {nbytes} bytes, but"
                        f" {room.size - room.used} of {room.size} are free and those not always in one piece, and"
                        f" tensors that you hold beyond their scope keep {held}{which}; raise heap_ring_size, drop"
                        " these, or release older allocations with orch.scope()"
                    )
                self._changed.wait(min(left, LOOK))
            raise RuntimeError("the heap rings are closed")

    def _buffer(self, ring: int) -> Any:
        with self._changed:
            if ring not in self._buffers:
                fd = os.memfd_create(f"aorta-ring-{ring}")
                try:
                    os.ftruncate(fd, self._size)
                    memory = map_storage(fd, self._size)
                    buffer: Any = (ctypes.c_char * self._size).from_address(memory.data_ptr())
                    buffer.memory = memory
                    self._buffers[ring] = buffer
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
