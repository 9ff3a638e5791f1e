"""Graphs that workers of level 3 build when one of level 4 tells them to. Imported by their processes."""

from __future__ import annotations

import os
import threading
from typing import Any

import levels_tasks

from pytest_aorta.runtime import CallableHandle, Orchestrator, SlotArgs, TaskArgs


class Through:
    """Runs one task on a SUB worker, with the same arguments."""

    def __init__(self, handle: CallableHandle, timeout: float | None = None, *, ref: bool = False) -> None:
        self.handle = handle
        self.timeout = timeout
        self.ref = ref

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> Any:
        passed = TaskArgs()
        for scalar in args.scalars:
            passed.add_scalar(scalar)
        ref = orch.submit_sub(self.handle, passed, timeout=self.timeout)
        if self.ref:
            return [ref]
        return {"config": config, "scalars": list(args.scalars)}


class Several:
    """Runs tasks of one callable after one of another, in a queue that is longer than there are workers."""

    def __init__(self, first: CallableHandle, then: CallableHandle) -> None:
        self.first = first
        self.then = then

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> Any:
        passed = TaskArgs().add_scalar(args.scalars[0]).add_scalar(args.scalars[1])
        before = orch.submit_sub(self.first, passed)
        return [orch.submit_sub(self.then, after=[before]) for _ in range(3)]


def where(orch: Orchestrator, args: SlotArgs, config: Any) -> int:
    return os.getpid()


def broken(orch: Orchestrator, args: SlotArgs, config: Any) -> None:
    raise LookupError("while it was built")


def endless(orch: Orchestrator, args: SlotArgs, config: Any) -> None:
    """Builds for ever."""
    levels_tasks.note(args.scalars[0], f"building {args.scalars[1]}")
    threading.Event().wait(levels_tasks.PATIENCE)


class Waiting:
    """Waits for a task that waits, and then submits another one."""

    def __init__(self, gate: CallableHandle) -> None:
        self.gate = gate

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> None:
        levels_tasks.note(args.scalars[0], f"building {args.scalars[1]}")
        passed = TaskArgs().add_scalar(args.scalars[0]).add_scalar(args.scalars[1])
        orch.submit_sub(self.gate, passed).wait()
        orch.submit_sub(self.gate, passed)


def die(orch: Orchestrator, args: SlotArgs, config: Any) -> None:
    levels_tasks.die(args)


def unsendable(orch: Orchestrator, args: SlotArgs, config: Any) -> Any:
    return threading.Lock()


def mixed(orch: Orchestrator, args: SlotArgs, config: Any) -> Any:
    return {"bytes": b"\xff", "number": -(2**40)}
