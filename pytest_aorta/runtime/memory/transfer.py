"""Arguments of tasks between processes: scalars by value, tensors as views of shared memory.

A storage goes to another process of the host once, as a file descriptor; from then on both call it by a number, until
the run has ended. To another host, tensors go by value, and those that a task may write come back with its completion.
"""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from pytest_aorta.runtime.memory.torch_storage import descriptor_of, map_storage, storage_id

if TYPE_CHECKING:
    import torch

Message = dict[str, Any]

#: Storages that a process keeps mapped within one run.
MAX_MAPPED = 256

#: Bytes of tensors that go to another host with one task.
MAX_INLINE = 256 * 2**20


class Arguments(Protocol):
    """What is sent: ``TaskArgs``."""

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """Tensors, in order."""

    @property
    def scalars(self) -> Sequence[Any]:
        """Plain values, in order."""

    @property
    def written(self) -> list[int]:
        """Numbers of the tensors that the task may write."""


class EncodedArgs(TypedDict, total=False):
    """Arguments as JSON values, with tensors either as views or by value.

    ``tensors``: storage, offset, shape, strides and type of each view. ``inline``: shape, type and content of each
    tensor, of which ``written`` come back. ``config``: pickled.
    """

    tensors: list[list[Any]]
    inline: list[list[Any]]
    written: list[int]
    scalars: list[Any]
    config: str | None


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

    def __repr__(self) -> str:
        tensors = ", ".join(f"{_dtype(tensor)} {tuple(tensor.shape)}" for tensor in self.tensors)
        return f"SlotArgs([{tensors}], {list(self.scalars)!r}, config={self.config!r})"


#: For a task without arguments.
NOTHING = SlotArgs()


@dataclass
class Sender:
    """The sending side towards one process, which knows the storages that the process has mapped.

    A storage is kept alive here until ``forget``, so that its number never means another one. ``forget`` is called
    between runs, and by ``encode`` when there are many; never while the other side has a task.
    """

    send: Callable[[Message], None]
    send_fd: Callable[[int], None]
    #: Number and storage, by the storage's id.
    _mapped: dict[int, tuple[int, torch.UntypedStorage]] = field(default_factory=dict)
    #: Those of ``_mapped`` that were made for the last task only.
    _copies: list[int] = field(default_factory=list)
    _count: int = 0

    def encode(self, args: Arguments | None, config: Any) -> EncodedArgs:
        """Encode arguments; storages that the other side has not mapped yet are sent ahead."""
        if args is None:
            return {"config": _pickled(config)}
        if len(self._mapped) > MAX_MAPPED:
            self.forget()
        if self._copies:
            self._forget_copies()
        views: list[list[Any]] = []
        for tensor in args.tensors:
            shared = tensor
            if not is_shared(tensor):
                shared = share(tensor)
                self._copies.append(storage_id(shared))
            number = self._share(shared)
            views.append([number, shared.storage_offset(), list(shared.shape), list(shared.stride()), _dtype(shared)])
        return {"tensors": views, "scalars": list(args.scalars), "config": _pickled(config)}

    def _share(self, tensor: torch.Tensor) -> int:
        identity = storage_id(tensor)
        if identity not in self._mapped:
            number, storage = self._count, tensor.untyped_storage()
            self._count += 1
            fd, size = descriptor_of(storage)
            self.send({"op": "map", "storage": number, "bytes": size})
            self.send_fd(fd)
            self._mapped[identity] = (number, storage)
        return self._mapped[identity][0]

    def forget(self) -> None:
        """Unmap all storages, here and there."""
        self._copies.clear()
        if self._mapped:
            self._mapped.clear()
            self.send({"op": "unmap"})

    def _forget_copies(self) -> None:
        numbers = [self._mapped.pop(identity)[0] for identity in self._copies if identity in self._mapped]
        self._copies.clear()
        if numbers:
            self.send({"op": "unmap", "storages": numbers})


def inline(args: Arguments | None, config: Any) -> EncodedArgs:
    """Encode arguments by value, for another host.

    Raises:
        ValueError: more than ``MAX_INLINE`` bytes.
    """
    if args is None:
        return {"inline": [], "written": [], "scalars": [], "config": _pickled(config)}
    size = sum(tensor.nbytes for tensor in args.tensors)
    if size > MAX_INLINE:
        raise ValueError(f"tensors of {size} bytes go to another host by value; at most {MAX_INLINE} do with one task")
    return {
        "inline": [to_bytes(tensor) for tensor in args.tensors],
        "written": args.written,
        "scalars": list(args.scalars),
        "config": _pickled(config),
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
    return [list(tensor.shape), _dtype(tensor), bytes(flat.numpy())]


def from_bytes(shape: Sequence[int], dtype: str, content: bytes) -> torch.Tensor:
    """The reverse of ``to_bytes``: a tensor in shared memory."""
    import torch

    kind = getattr(torch, dtype)
    made = torch.empty(list(shape), dtype=kind)
    if content:
        made = torch.frombuffer(bytearray(content), dtype=kind).reshape(list(shape))
    return share(made)


class Receiver:
    """The receiving side: storages by their number."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}

    def map(self, number: int, size: int, fd: int) -> None:
        """Map a storage that was sent, and close its descriptor."""
        self._storages[number] = map_storage(fd, size)
        os.close(fd)

    def unmap(self, numbers: Sequence[int] | None = None) -> None:
        """Unmap some storages, or all."""
        for number in list(self._storages) if numbers is None else numbers:
            self._storages.pop(number, None)

    def decode(self, args: EncodedArgs | None) -> SlotArgs:
        """Arguments whose tensors are views of the sender's memory, or copies, if that is another host's."""
        if args is None:
            return NOTHING
        tensors = [from_bytes(*parts) for parts in args.get("inline", ())]
        if args.get("tensors"):
            import torch

            for number, offset, shape, stride, dtype in args["tensors"]:
                empty = torch.empty(0, dtype=getattr(torch, dtype))
                tensors.append(empty.set_(self._storages[number], offset, shape, stride))
        return SlotArgs(tuple(tensors), tuple(args.get("scalars", ())), _unpickled(args["config"]))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _pickled(value: Any) -> str | None:
    """Objects of this side, which its own processes may trust."""
    if value is None:
        return None
    import cloudpickle

    return base64.b64encode(cloudpickle.dumps(value)).decode()


def _unpickled(text: str | None) -> Any:
    return None if text is None else pickle.loads(base64.b64decode(text))
