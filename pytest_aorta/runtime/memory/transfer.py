"""Arguments of tasks between processes: scalars by value, tensors as views of shared memory.

To a process of this host, memory goes through a ``sender``. To another host, tensors go by value, and those that a task
may write come back with its completion.
"""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from pytest_aorta.runtime.memory.tensor_bytes import dtype_name, from_bytes, from_storage, to_bytes
from pytest_aorta.runtime.memory.torch_storage import map_storage

if TYPE_CHECKING:
    import torch

Message = dict[str, Any]

#: The number of the storage of a tensor without items: there is nothing to be mapped.
EMPTY = -1

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

    ``tensors``: storage, offset, shape, strides and type of each view. ``inline``: shape, strides, type and content of
    each tensor, of which ``written`` come back. ``config``: pickled.
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
        tensors = ", ".join(f"{dtype_name(tensor)} {tuple(tensor.shape)}" for tensor in self.tensors)
        return f"SlotArgs([{tensors}], {list(self.scalars)!r}, config={self.config!r})"


#: For a task without arguments.
NOTHING = SlotArgs()


def inline(args: Arguments | None, config: Any) -> EncodedArgs:
    """Encode arguments by value, for another host.

    Raises:
        ValueError: more than ``MAX_INLINE`` bytes.
    """
    if args is None:
        return {"inline": [], "written": [], "scalars": [], "config": pickled(config)}
    size = sum(tensor.nbytes for tensor in args.tensors)
    if size > MAX_INLINE:
        raise ValueError(f"tensors of {size} bytes go to another host by value; at most {MAX_INLINE} do with one task")
    return {
        "inline": [to_bytes(tensor) for tensor in args.tensors],
        "written": args.written,
        "scalars": list(args.scalars),
        "config": pickled(config),
    }


class TensorUnavailable(RuntimeError):
    """The memory of a tensor that was sent could not be mapped."""


class Receiver:
    """The receiving side: storages by their number."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._missing: dict[int, str] = {}

    def map(self, number: int, size: int, fd: int | None) -> None:
        """Map a storage that was sent, and close its descriptor, which is ``None`` if it could not be received.

        An error is one of the tasks that need it, and reported by ``decode``.
        """
        if fd is None:
            self._missing[number] = "its descriptor did not arrive (too many open files?)"
            return
        try:
            self._storages[number] = map_storage(fd, size)
        except Exception as error:
            self._missing[number] = str(error)
        finally:
            os.close(fd)

    def unmap(self, numbers: Sequence[int]) -> None:
        """Unmap storages; the memory stays for as long as a task has a view of it."""
        for number in numbers:
            self._storages.pop(number, None)
            self._missing.pop(number, None)

    def decode(self, args: EncodedArgs | None) -> SlotArgs:
        """Arguments whose tensors are views of the sender's memory, or copies, if that is another host's.

        Raises:
            TensorUnavailable: a tensor's memory could not be mapped.
        """
        if args is None:
            return NOTHING
        tensors = [from_bytes(*parts) for parts in args.get("inline", ())]
        if args.get("tensors"):
            tensors = [self._view(position, *parts) for position, parts in enumerate(args["tensors"])]
        return SlotArgs(tuple(tensors), tuple(args.get("scalars", ())), _unpickled(args["config"]))

    def _view(
        self, position: int, number: int, offset: int, shape: list[int], strides: list[int], dtype: str
    ) -> torch.Tensor:
        import torch

        kind = getattr(torch, dtype)
        if number == EMPTY:
            return torch.empty_strided(tuple(shape), tuple(strides), dtype=kind, device="cpu")
        storage = self._storages.get(number)
        if storage is None:
            why = self._missing.get(number, "it was not sent")
            raise TensorUnavailable(f"the memory of tensor {position} could not be mapped: {why}")
        return from_storage(storage, offset, shape, strides, kind)


def pickled(config: Any) -> str | None:
    """The configuration of a task, for the worker's own processes, which may trust it.

    Raises:
        TypeError: it cannot be pickled.
    """
    if config is None:
        return None
    import cloudpickle

    try:
        data = cloudpickle.dumps(config)
    except Exception as error:
        raise TypeError(f"config cannot be sent to another process: {type(error).__name__}: {error}") from error
    return base64.b64encode(data).decode()


def _unpickled(text: str | None) -> Any:
    return None if text is None else pickle.loads(base64.b64decode(text))
