"""What runs in the processes below a worker: a slot, which runs one task after the other, or a worker of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from pytest_aorta.runtime.channel import Channel
from pytest_aorta.runtime.children.slot import SlotProcess


def prepare(argument: dict[str, Any]) -> dict[str, Any]:
    """Once per zygote: import torch, where tensors are to be expected."""
    if argument["torch"]:
        import torch  # noqa: F401
    return {}


def serve(payload: dict[str, Any], channel: Channel) -> None:
    """Serve as a slot or as a worker until the other side closes the channel."""
    os.environ.update(payload["variables"])
    take_output(channel, payload["output"])
    if payload["role"] == "worker":
        from pytest_aorta.runtime.children.worker_server import serve_worker

        serve_worker(payload["spec"], channel)
    else:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker has ended during a task
            SlotProcess(channel).serve(payload)


def take_output(channel: Channel, targets: list[int]) -> None:
    """Print where the submitter prints; its descriptors come over the channel."""
    for target in targets:
        fd = channel.receive_fd()
        if fd is not None:
            os.dup2(fd, target)
            os.close(fd)
    # New streams: the old ones were opened on the zygote's log, as a file in which they can seek.
    for name, target in (("stdout", 1), ("stderr", 2)):
        getattr(sys, name).flush()
        stream = open(target, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
