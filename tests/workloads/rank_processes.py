"""Runs a function on several ranks, each in a process, and gives what they return."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, says its documentation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_aorta.trials.workload import Workload, WorkloadResult

PATIENCE_SEC = 120.0
"""Only a hang takes that long."""

# A server that has imported torch and forks each rank: quick, and a proof that the workloads can be forked.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["aorta_workloads.fsdp", "aorta_workloads.allreduce"])


@dataclass
class Driven:
    """A workload's result on one rank, and the steps that it reported."""

    result: WorkloadResult
    progress: list[tuple[int, int | None]]

    def assert_passed(self, steps: int) -> None:
        """All steps were done, reported and timed, and nothing is wrong."""
        result = self.result
        assert result.passed, result.failure_details
        assert (result.failure_count, result.failure_details) == (0, [])
        assert self.progress == [(step, steps) for step in range(1, steps + 1)]
        assert result.total_iterations == result.executed_iterations == result.configured_iterations == steps
        assert len(result.step_times_ms) == steps
        assert 0 < sum(result.step_times_ms) / 1e3 <= result.elapsed_sec


def drive(workload_class: type[Workload], options: dict[str, Any]) -> Driven:
    """Do what the runner does with a workload, in this process."""
    workload = workload_class(workload_class.Config(**options))  # type: ignore[attr-defined]
    reported: list[tuple[int, int | None]] = []
    workload.progress = lambda step, total=None: reported.append((step, total))  # type: ignore[method-assign]
    try:
        workload.setup()
        result = workload.run()
    finally:
        workload.cleanup()
    return Driven(result, reported)


def drive_on_ranks(workload_class: type[Workload], world_size: int = 2, **options: Any) -> list[Driven]:
    """Run a workload on CPU ranks; the results in the order of the ranks."""
    return run_on_ranks(drive, workload_class, {"device": "cpu", **options}, world_size=world_size)


def run_on_ranks(function: Callable[..., Any], *args: Any, world_size: int = 2) -> list[Any]:
    """Call ``function(*args)`` on all ranks, each a process; raises what one of them raises."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE_SEC))
    variables = {
        **{"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1"},
        "MASTER_PORT": store.port,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # the one above, like that of torchrun's agent
    }
    calls = [({**variables, "RANK": rank, "LOCAL_RANK": rank}, function, args) for rank in range(world_size)]
    with _context.Pool(world_size, maxtasksperchild=1) as pool:
        return pool.starmap_async(_call_as_rank, calls, chunksize=1).get(PATIENCE_SEC)


def _call_as_rank(variables: dict[str, Any], function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    os.environ.update({name: str(value) for name, value in variables.items()})
    torch.set_num_threads(1)  # the ranks share the cores
    return function(*args)
