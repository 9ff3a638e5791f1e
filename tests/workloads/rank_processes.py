"""Runs a function on several ranks, each in a process, and gives what they return."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, says its documentation

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

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
    """Call ``function(*args)`` on all ranks.

    Raises:
        AssertionError: a rank raised (with its traceback), died or hung.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE_SEC))
    processes = []
    connections = []
    for rank in range(world_size):
        variables = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": store.port,
            "TORCHELASTIC_USE_AGENT_STORE": True,  # the one above, like that of torchrun's agent
        }
        ours, theirs = _context.Pipe()
        process = _context.Process(
            target=_rank_main, args=(theirs, {name: str(value) for name, value in variables.items()}, function, args)
        )
        process.start()
        theirs.close()
        processes.append(process)
        connections.append(ours)
    try:
        return [_answer(rank, connection) for rank, connection in enumerate(connections)]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _answer(rank: int, connection: Connection) -> Any:
    assert connection.poll(PATIENCE_SEC), f"rank {rank} hangs"
    try:
        answer, error = connection.recv()
    except EOFError:
        raise AssertionError(f"rank {rank} died") from None
    assert error is None, f"rank {rank}: {error}"
    return answer


def _rank_main(
    connection: Connection, variables: dict[str, str], function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)  # the ranks share the cores
    try:
        connection.send((function(*args), None))
    except BaseException:
        connection.send((None, traceback.format_exc()))
