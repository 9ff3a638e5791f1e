"""What tasks with tensors do, and graphs of them. Imported by the processes that run them."""

from __future__ import annotations

import os
from typing import Any

import levels_tasks
import torch

from pytest_aorta.runtime import CallableHandle, Orchestrator, SlotArgs, Tag, TaskArgs


def share(tensor: torch.Tensor) -> torch.Tensor:
    """Move it to shared memory; torch's own method says nothing of its type."""
    untyped: Any = tensor
    shared: torch.Tensor = untyped.share_memory_()
    return shared


def fill(args: Any) -> None:
    """The last tensor, with the scalar."""
    args.tensors[-1].fill_(args.scalars[0])


def fill_at_gate(args: Any) -> None:
    value, folder, name = args.scalars
    levels_tasks.gate(SlotArgs((), (folder, name)))
    args.tensors[-1].fill_(value)


def fill_half_and_boom(args: Any) -> None:
    args.tensors[0][0] = 1
    raise ValueError("half way")


def add(args: Any) -> None:
    """The sum of all but the last, into the last."""
    *inputs, output = args.tensors
    output.copy_(torch.stack(list(inputs)).sum(0))


def increment(args: Any) -> None:
    args.tensors[0].add_(1)


def total(args: Any) -> float:
    return float(sum(tensor.double().sum() for tensor in args.tensors))


def give_tensor(args: Any) -> Any:
    return torch.ones(3)


def give_back(args: Any) -> Any:
    """As much as a record takes."""
    most = 2**18
    return args.tensors[0][:most] if args.tensors else None, args.config[:most]


def list_open() -> list[str]:
    listed = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
    return [fd for fd in listed if os.path.lexists(f"/proc/self/fd/{fd}")]


def open_other_files(args: Any) -> list[bytes]:
    """Take the numbers of the files that large messages go through."""
    import tempfile

    links = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in list_open()}
    for fd, target in links.items():
        if "aorta-bulk" in target:
            os.close(fd)
    files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115
    globals()["_kept"] = files
    for file in files:
        file.write(b"mine")
        file.flush()
    return [os.pread(file.fileno(), 9, 0) for file in files]


def give_item(args: Any) -> Any:
    return {"loss": torch.ones(3).mean().item()}


def open_files(args: Any) -> int:
    return len(os.listdir("/proc/self/fd"))


class Through:
    """Hands its tensors on to a SUB task, all of them INOUT, and its scalars."""

    def __init__(self, handle: CallableHandle) -> None:
        self.handle = handle

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> None:
        passed = TaskArgs()
        for tensor in args.tensors:
            passed.add(tensor, Tag.INOUT)
        for scalar in args.scalars:
            passed.add_scalar(scalar)
        orch.submit_sub(self.handle, passed)


class Onward:
    """Hands its tensors on to a SUB task, as many as the scalar says INOUT, and returns what that returned."""

    def __init__(self, handle: CallableHandle) -> None:
        self.handle = handle

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> Any:
        passed = TaskArgs().add_scalar(args.scalars[0])
        for number, tensor in enumerate(args.tensors):
            passed.add(tensor, Tag.INOUT if number < args.scalars[0] else Tag.INPUT)
        return orch.submit_sub(self.handle, passed).wait().payload


class Between:
    """Allocates on its own host, and adds what it finds there."""

    def __init__(self, fill: CallableHandle, add: CallableHandle) -> None:
        self.fill = fill
        self.add = add

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> None:
        own = orch.alloc(args.tensors[0].shape, args.tensors[0].dtype)
        orch.submit_sub(self.fill, TaskArgs().add(own, Tag.OUTPUT).add_scalar(args.scalars[0]))
        both = TaskArgs().add(own).add(args.tensors[0]).add(args.tensors[1], Tag.OUTPUT)
        orch.submit_sub(self.add, both)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its memory, with an axis for the bytes of an item, because there are types that torch cannot print or invert."""
    size = tensor.element_size()
    strides = (*(stride * size for stride in tensor.stride()), 1)
    view = torch.empty(0, dtype=torch.uint8)
    return view.set_(tensor.untyped_storage(), tensor.storage_offset() * size, (*tensor.shape, size), strides)


def invert(args: Any) -> Any:
    """All bits of as many tensors as the scalar says; the bytes that all of them had before."""
    seen = [as_bytes(tensor).tolist() for tensor in args.tensors]
    for tensor in args.tensors[: args.scalars[0]]:
        if tensor.numel():
            as_bytes(tensor).bitwise_not_()
    return seen


def process(args: Any) -> int:
    return os.getpid()
