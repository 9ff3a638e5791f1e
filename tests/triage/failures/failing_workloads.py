"""Workloads that fail in different ways, each trial in one; copied to where pytest runs.

Trial ``2 n`` and trial ``2 n + 1`` fail in the same way, with other numbers.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

import failing_checks


def trial_index() -> int:
    """Of the trial that this process belongs to."""
    return int(os.environ["AORTA_TRIAL_INDEX"])


def raises() -> None:
    raise RuntimeError(f"loss is nan in process {os.getpid()}")


def raises_in_a_helper() -> None:
    failing_checks.check_finite(float("nan"))


def raises_in_a_library() -> None:
    json.loads(" " * (os.getpid() % 100) + "nan")


def raises_in_torch() -> None:
    import torch

    torch.ones(2, os.getpid() % 7 + 2) @ torch.ones(1, 5)


def raises_while_handling() -> None:
    try:
        os.environ["BIAS"]
    except KeyError:
        os.stat(f"/nowhere/{os.getpid()}.bin")


def segfaults() -> None:
    ctypes.string_at(0)


def aborts() -> None:
    os.write(
        2, b"terminate called after throwing an instance of 'c10::Error'\n  what():  %d is no size\n" % os.getpid()
    )
    os.abort()


def is_killed() -> None:
    os.kill(os.getpid(), 9)


def exits() -> None:
    os._exit(3)


def calls_sys_exit() -> None:
    sys.exit(4)


def hangs() -> None:
    time.sleep(1000)


WAYS = (
    raises,
    raises_in_a_helper,
    raises_in_a_library,
    raises_while_handling,
    segfaults,
    aborts,
    is_killed,
    exits,
    calls_sys_exit,
    hangs,
)


class Failing:
    """One process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.way = trial_index() // 2

    def setup(self) -> None: ...

    def run(self) -> dict[str, Any]:
        if self.way < len(WAYS):
            WAYS[self.way]()
        detail = {"kind": "differs_from_reference", "operation": "matmul", "iteration": os.getpid()}
        return {"passed": False, "failure_count": os.getpid(), "failure_details": [detail]}


class FailingRanks(Failing):
    """Two ranks, of which one fails: rank 0 in even trials, rank 1 in odd ones."""

    launch_mode = "distributed"
    min_world_size = 2

    def setup(self) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")

    def run(self) -> dict[str, Any]:
        import torch
        import torch.distributed as dist

        if dist.get_rank() == trial_index() % 2:
            (*WAYS, raises_in_torch)[self.way]()
        dist.all_reduce(torch.ones(3))
        return {"passed": True}
