"""Tensors of every kind, and a channel that tasks' arguments go through without a second process."""

from __future__ import annotations

import json
from typing import Any

import torch
from hypothesis import strategies as st

from pytest_aorta.runtime import SlotArgs, TaskArgs
from pytest_aorta.runtime.channel import Channel
from pytest_aorta.runtime.memory.sender import Sender
from pytest_aorta.runtime.memory.tensor_bytes import byte_view
from pytest_aorta.runtime.memory.transfer import Receiver

#: Types whose items are bytes of memory, all that torch has but the quantized ones.
DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype) and "q" not in str(value)}, key=str
)


def content(tensor: torch.Tensor) -> list[Any]:
    """The bytes of every item, so that NaN is equal to itself, and types that torch cannot print can be compared."""
    found: list[Any] = byte_view(tensor).tolist()
    return found


class Pipe:
    """Both ends of a real channel: what a worker sends, and what its slot makes of it."""

    def __init__(self) -> None:
        self.ours, self.theirs = Channel.pair()
        self.receiver = Receiver()
        self.many_dead: list[int] = []
        self.sender = Sender(self.ours.send, self.ours.send_fd, lambda: self.many_dead.append(1))

    def pass_on(self, args: TaskArgs) -> SlotArgs:
        """What a task gets for ``args``."""
        encoded = json.loads(json.dumps(self.sender.encode(args, None)))
        self.read()
        return self.receiver.decode(encoded)

    def read(self) -> None:
        """Carry out the orders that have come."""
        while self.theirs.poll():
            order = self.theirs.receive()
            assert order is not None
            if order["op"] == "map":
                self.receiver.map(order["storage"], order["bytes"], self.theirs.receive_fd())
            else:
                self.receiver.unmap(order["storages"])

    @property
    def mapped(self) -> int:
        """Storages that the slot has mapped."""
        return len(self.receiver._storages)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def new_memory(size: int, shared: bool) -> torch.Tensor:
    """So many different bytes."""
    memory: Any = torch.arange(size, dtype=torch.int64).to(torch.uint8)
    made: torch.Tensor = memory.share_memory_() if shared else memory
    return made


@st.composite
def views(draw: st.DrawFn, memory: torch.Tensor) -> torch.Tensor:
    """Any view of some bytes: any type, offset and strides, empty, without axes, expanded, with windows."""
    dtype = draw(st.sampled_from(DTYPES))
    items = len(memory) // dtype.itemsize
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    strides, left = [], items - 1  # beyond its end, torch would resize the memory
    for size in shape:
        strides.append(draw(st.integers(0, min(6, left // max(1, size - 1)))))
        left -= strides[-1] * max(0, size - 1)
    offset = draw(st.integers(0, left))
    view = torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), offset, shape, strides)
    if draw(st.booleans()) and (dtype.is_floating_point or dtype.is_complex):
        view = view.requires_grad_()
    return torch.nn.Parameter(view) if view.requires_grad and draw(st.booleans()) else view
