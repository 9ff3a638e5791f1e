"""Arguments of tasks between processes of one host: scalars by value, tensors as views of shared memory.

A storage goes to another process once, as a file descriptor; from then on both call it by a number, until the run
has ended. To another host, tensors go by value, and what a task may write comes back with its completion.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from pytest_aorta.runtime.graph.args import TaskArgs

Message = dict[str, Any]

#: Storages that a process keeps mapped within one run.
MAX_MAPPED = 256

#: Bytes of tensors that go to another host with one task.
MAX_INLINE = 256 * 2**20


@dataclass(frozen=True)
class SlotArgs:
    """What a task's callable gets: ``fn(args)``.

    Attributes:
        tensors: views of the memory that the submitter sees, in the order of ``TaskArgs.add``.
        scalars: in the order of ``TaskArgs.add_scalar``.
        config: what ``submit_next_level`` was given.
    """

    tensors: Sequence[torch.Tensor] = ()
    scalars: Sequence[Any] = ()
    config: Any = None


#: What a task is given that is given nothing.
NOTHING = SlotArgs()


@dataclass
class Sender:
    """The sending side towards one process: which storages that one has mapped already.

    A storage is kept alive here until ``forget``, so that its number never means another one. ``forget`` is called
    between runs, and by itself when there are many; never while the other side has a task.
    """

    send: Callable[[Message], None]
    send_fd: Callable[[int], None]
    _known: dict[Hashable, tuple[int, Any]] = field(default_factory=dict)
    #: Those of ``_known`` that were made for the last task only.
    _copies: list[Hashable] = field(default_factory=list)
    _count: int = 0

    def encode(self, args: TaskArgs | None, config: Any) -> Message:
        """JSON values; storages that the other side has not mapped yet are sent ahead."""
        if args is None:
            return {"config": _plain_or_pickled(config)}
        from pytest_aorta.runtime.graph.footprint import footprint_of

        if len(self._known) > MAX_MAPPED:
            self.forget()
        if self._copies:
            self._forget_copies()
        views = []
        for tensor in args.tensors:
            shared = tensor
            backing = footprint_of(tensor).backing
            if not is_shared(tensor):
                shared = share(tensor)
                backing = footprint_of(shared).backing
                self._copies.append(backing)
            known = self._share(backing, shared.untyped_storage())
            dtype = str(shared.dtype).removeprefix("torch.")
            views.append([known, shared.storage_offset(), list(shared.shape), list(shared.stride()), dtype])
        return {"tensors": views, "scalars": list(args.scalars), "config": _plain_or_pickled(config)}

    def _share(self, backing: Hashable, storage: torch.UntypedStorage) -> int:
        if backing not in self._known:
            number = self._count
            self._count += 1
            fd, size = storage._share_fd_cpu_()
            self.send({"op": "map", "storage": number, "bytes": size})
            self.send_fd(fd)
            self._known[backing] = (number, storage)
        return self._known[backing][0]

    def forget(self) -> None:
        """Let go of all storages, here and there."""
        self._copies.clear()
        if self._known:
            self._known.clear()
            self.send({"op": "unmap"})

    def _forget_copies(self) -> None:
        numbers = [self._known.pop(backing)[0] for backing in self._copies if backing in self._known]
        self._copies.clear()
        if numbers:
            self.send({"op": "unmap", "storages": numbers})


def inline(args: TaskArgs | None, config: Any) -> Message:
    """Arguments by value, for another host; ``written`` says which tensors come back.

    Raises:
        ValueError: more than ``MAX_INLINE`` bytes.
    """
    tensors = args.tensors if args is not None else ()
    tags = args.tags if args is not None else ()
    size = sum(tensor.nbytes for tensor in tensors)
    if size > MAX_INLINE:
        raise ValueError(f"tensors of {size} bytes go to another host by value; at most {MAX_INLINE} do with one task")
    return {
        "inline": [to_bytes(tensor) for tensor in tensors],
        "written": [number for number, tag in enumerate(tags) if tag.writes],
        "scalars": list(args.scalars) if args is not None else [],
        "config": _plain_or_pickled(config),
    }


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether other processes of this host can see its memory."""
    return bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def share(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in shared memory."""
    copy: torch.Tensor = tensor.detach().clone().share_memory_()  # type: ignore[no-untyped-call]
    return copy


def to_bytes(tensor: torch.Tensor) -> list[Any]:
    """Shape, type and content of a tensor."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch."), bytes(flat.numpy())]


def from_bytes(shape: Sequence[int], dtype: str, content: bytes) -> torch.Tensor:
    """A tensor in shared memory."""
    import torch

    kind = getattr(torch, dtype)
    made = torch.empty(list(shape), dtype=kind)
    if content:
        made = torch.frombuffer(bytearray(content), dtype=kind).reshape(list(shape))
    return share(made)


class Receiver:
    """The receiving side: storages by their number."""

    def __init__(self) -> None:
        self._storages: dict[int, Any] = {}

    def map(self, number: int, size: int, fd: int) -> None:
        """Map a storage that was sent."""
        import os

        import torch

        self._storages[number] = torch.UntypedStorage._new_shared_fd_cpu(fd, size)  # type: ignore[attr-defined]
        os.close(fd)

    def unmap(self, numbers: Sequence[int] | None = None) -> None:
        """Let go of some storages, or of all."""
        for number in list(self._storages) if numbers is None else numbers:
            self._storages.pop(number, None)

    def decode(self, message: Mapping[str, Any] | None) -> SlotArgs:
        """Arguments whose tensors are views of the sender's memory, or copies, when that is another host's."""
        if message is None:
            return NOTHING
        tensors = [from_bytes(*parts) for parts in message.get("inline", ())]
        if message.get("tensors"):
            import torch

            for number, offset, shape, stride, dtype in message["tensors"]:
                empty = torch.empty(0, dtype=getattr(torch, dtype))
                tensors.append(empty.set_(self._storages[number], offset, shape, stride))
        return SlotArgs(tuple(tensors), tuple(message.get("scalars", ())), _unpickled(message["config"]))


def _plain_or_pickled(value: Any) -> Any:
    """Our own side's configuration, which its processes may trust; JSON where that is enough."""
    if value is None:
        return None
    import cloudpickle

    return base64.b64encode(cloudpickle.dumps(value)).decode()


def _unpickled(text: str | None) -> Any:
    return None if text is None else pickle.loads(base64.b64decode(text))
