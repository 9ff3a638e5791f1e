"""Shared memory that a callable captures: other processes map the same bytes, or the callable is refused.

A pickle of an array over ``SharedMemory`` is a copy of it, without a word. What counts is the address: whatever lies in
memory that is mapped as shared goes as a file of this process and a place in it. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_aorta.runtime.tensors import from_storage

#: What ``pickle`` calls with what.
Reduced = tuple[Callable[..., Any], tuple[Any, ...]]

REMEDY = (
    "what processes share can be captured as a tensor in shared memory, or as a NumPy array, a memoryview or a ctypes"
    " object over multiprocessing.shared_memory.SharedMemory or a file that is mapped; locks, queues and"
    " mmap(-1) belong to forks of one process"
)


class NotShared(TypeError):
    """Shared memory that another process cannot map."""


class _File:
    """A file of shared memory that stays open here for as long as a callable needs it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd).atexit = False


#: One for all callables, which are equal then if they capture the same memory.
_files: weakref.WeakValueDictionary[tuple[int, int, int], _File] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class Place:
    """Bytes of a file that process ``pid`` has open."""

    pid: int
    fd: int
    inode: int
    offset: int
    size: int
    writable: bool

    def attach(self) -> memoryview:
        """Map them; ``RuntimeError`` where that is not possible."""
        start = self.offset - self.offset % mmap.ALLOCATIONGRANULARITY
        try:
            with open(f"/proc/{self.pid}/fd/{self.fd}", "r+b" if self.writable else "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_ino != self.inode:
                    raise OSError("its number is another file's")
                access = mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ
                mapped = mmap.mmap(file.fileno(), self.offset - start + self.size, access=access, offset=start)
        except (OSError, ValueError) as error:
            raise RuntimeError(
                f"shared memory that a callable has captured in process {self.pid} cannot be mapped here ({error}): is"
                " this another host? Pass it as a tensor in TaskArgs"
            ) from error
        return memoryview(mapped)[self.offset - start :]


class Capturing:
    """Reduces what one callable captures; ``keeps`` is what has to live as long as the callable."""

    def __init__(self) -> None:
        self.keeps: list[Any] = []

    def reduce(self, item: Any) -> Reduced | None:
        """How to pickle an object in shared memory; ``None`` for any other one.

        Raises:
            NotShared: no other process can map it.
        """
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(item, torch.Tensor):
            if item.device.type != "cpu" or item.layout != torch.strided or not item.numel() or item.is_quantized:
                return None
            address, itemsize = item.data_ptr(), item.element_size()
            size = sum((n - 1) * s for n, s in zip(item.shape, item.stride(), strict=True)) * itemsize + itemsize
            layout = tuple(item.shape), tuple(item.stride()), item.dtype
            needs_grad = item.requires_grad if isinstance(item, torch.nn.Parameter) else None
            return self._placed(address, size, _tensor, *layout, needs_grad)
        if numpy is not None and isinstance(item, numpy.ndarray):
            if not item.size or item.dtype.hasobject:
                return None
            low, high = _bounds(item)
            address = item.__array_interface__["data"][0]
            return self._placed(low, high - low, _array, item.shape, item.dtype, address - low, item.strides)
        if isinstance(item, memoryview):
            if not item.nbytes or not item.contiguous:
                return None
            return self._placed(_address(item), item.nbytes, _view, item.format, item.shape)
        named = sys.modules.get("multiprocessing.shared_memory")
        if named is not None and isinstance(item, named.SharedMemory):
            return _attach_named, (item.name,)
        if isinstance(item, ctypes._SimpleCData | ctypes.Array | ctypes.Structure | ctypes.Union):
            size = ctypes.sizeof(item)
            return self._placed(ctypes.addressof(item), size, _ctypes_object, type(item)) if size else None
        return None

    def _placed(self, address: int, size: int, load: Callable[..., Any], *layout: Any) -> Reduced | None:
        found = _mapping(address)
        if found is None:
            return None
        start, offset, device, inode, path, writable = found
        if path.startswith("/memfd:aorta-ring-"):
            raise NotShared(
                "memory of orch.alloc or add_output cannot be captured: it is used again; pass it in TaskArgs"
            )
        file = _files.get((os.getpid(), device, inode))
        if file is None:
            file = _files[os.getpid(), device, inode] = _File(_open(device, inode, path, writable))
        self.keeps.append(file)
        return load, (Place(os.getpid(), file.fd, inode, offset + address - start, size, writable), *layout)


def _mapping(address: int) -> tuple[int, int, int, int, str, bool] | None:
    """The shared mapping at an address: its start, offset in its file, device, inode and path, and whether writable."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, offset, device, inode, *path = line.split(maxsplit=5)
        start, stop = (int(end, 16) for end in span.split("-"))
        if start <= address < stop:
            major, minor = (int(part, 16) for part in device.split(":"))
            where = start, int(offset, 16), os.makedev(major, minor), int(inode), (path or [""])[0], "w" in mode
            return where if mode[3] == "s" else None
    return None


def _open(device: int, inode: int, path: str, writable: bool) -> int:
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found = os.fstat(int(fd))
            if (found.st_dev, found.st_ino) == (device, inode):
                return os.open(f"/proc/self/fd/{fd}", (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        own = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        if os.fstat(own).st_ino == inode:
            return own
        os.close(own)
    raise NotShared(f"shared memory without a file that is open ({path or 'anonymous'}) cannot be captured: {REMEDY}")


def _address(view: memoryview) -> int:
    import numpy

    address: int = numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0]
    return address


def _bounds(array: Any) -> tuple[int, int]:
    low = high = array.__array_interface__["data"][0]
    for size, stride in zip(array.shape, array.strides, strict=True):
        low, high = low + min(0, (size - 1) * stride), high + max(0, (size - 1) * stride)
    return low, high + array.itemsize


# The other side


def _tensor(place: Place, shape: Any, strides: Any, dtype: Any, needs_grad: bool | None) -> Any:
    import torch

    flat = torch.frombuffer(place.attach(), dtype=torch.uint8)
    tensor = from_storage(flat.untyped_storage(), 0, shape, strides, dtype)
    return tensor if needs_grad is None else torch.nn.Parameter(tensor, needs_grad)


def _array(place: Place, shape: Any, dtype: Any, offset: int, strides: Any) -> Any:
    import numpy

    return numpy.ndarray(shape, dtype, place.attach(), offset, strides)


def _view(place: Place, kind: str, shape: list[int]) -> memoryview:
    flat = place.attach()
    return flat if kind == "B" and len(shape) == 1 else flat.cast("B").cast(kind, shape)  # type: ignore[call-overload]


def _ctypes_object(place: Place, kind: Any) -> Any:
    return kind.from_buffer(place.attach())


def _attach_named(name: str) -> Any:
    resource_tracker: Any = import_module("multiprocessing.resource_tracker")
    # This process only looks: a tracker of its own would unlink the memory when it ends.
    register, resource_tracker.register = resource_tracker.register, lambda *_: None
    try:
        return import_module("multiprocessing.shared_memory").SharedMemory(name)
    finally:
        resource_tracker.register = register
