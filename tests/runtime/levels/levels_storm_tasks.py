"""What runs below a worker of which any process may be killed at any moment."""

from __future__ import annotations

import time
from typing import Any

from pytest_aorta.runtime import CallableHandle, Orchestrator, SlotArgs, TaskArgs


def square(args: SlotArgs) -> list[int]:
    """The number, and its square, after so long that most kills meet a task."""
    time.sleep(0.02)
    number = int(args.scalars[0])
    return [number, number * number]


class SumOfSquares:
    """A graph of two tasks and what they have returned; in the process of a worker of level 3."""

    def __init__(self, handle: CallableHandle) -> None:
        self.handle = handle

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> list[int]:
        number = int(args.scalars[0])
        refs = [orch.submit_sub(self.handle, TaskArgs().add_scalar(number + step)) for step in (0, 1)]
        records = [ref.wait() for ref in refs]
        return [number, sum(record.payload[1] for record in records if record.ok)]
