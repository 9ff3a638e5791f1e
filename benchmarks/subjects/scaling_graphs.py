"""Graphs of many tasks that do nothing: ``scaling_graphs.py PATTERN NUMBER LOST`` prints what a task costs, as JSON.

Seconds per task: of the clock, and of the processor in the process that submits; and the peak memory of that process.
With ``LOST`` 1, one of three SUB workers is out of service; with 0, there are two.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from pytest_aorta.runtime import Tag, TaskArgs, TaskError, Worker
from pytest_aorta.runtime.dispatcher import TaskKind

#: Tasks of all runs of one size together; there is more than one run if they are short.
_TASKS = 10_000

_COLD = 200

#: Tasks that read what one has written, and that one waits for.
_WIDTH = 100

Arguments = Iterator[TaskArgs | None]


def nothing(*_: Any) -> None:
    pass


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def shared(*shape: int) -> torch.Tensor:
    made: torch.Tensor = torch.zeros(*shape).share_memory_()  # type: ignore[no-untyped-call]
    return made


def independent(count: int) -> Arguments:
    return (None for _ in range(count))


def chain(count: int) -> Arguments:
    tensor = shared(4)
    return (TaskArgs().add(tensor, Tag.INOUT) for _ in range(count))


def fans(count: int) -> Arguments:
    """One writes, many read it and write a row each, one reads all rows, and so on."""
    source, rows = shared(4), shared(_WIDTH, 4)
    for number in range(count):
        place = number % (_WIDTH + 2)
        if place == 0:
            yield TaskArgs().add(source, Tag.INOUT)
        elif place <= _WIDTH:
            yield TaskArgs().add(source).add(rows[place - 1], Tag.OUTPUT)
        else:
            yield TaskArgs().add(rows).add(source, Tag.INOUT)


def parts(whole: torch.Tensor, views: Iterable[torch.Tensor]) -> Arguments:
    yield TaskArgs().add(whole, Tag.OUTPUT)
    for view in views:
        yield TaskArgs().add(view, Tag.INOUT)


def rows(count: int) -> Arguments:
    whole = shared(count, 8)
    return parts(whole, (whole[row] for row in range(count)))


def columns(count: int) -> Arguments:
    whole = shared(8, count)
    return parts(whole, (whole[:, column] for column in range(count)))


def tiles(count: int) -> Arguments:
    side = int(count**0.5)
    whole = shared(4 * side, 4 * side)
    places = ((4 * (n // side % side), 4 * (n % side)) for n in range(count))
    return parts(whole, (whole[row : row + 4, column : column + 4] for row, column in places))


PATTERNS: dict[str, Callable[[int], Arguments]] = {
    "independent": independent,
    "chain": chain,
    "fans": fans,
    "rows": rows,
    "columns": columns,
    "tiles": tiles,
}


def lose_one(worker: Worker) -> None:
    """Have the first SUB worker die until it is out of service."""
    handle = worker.register(die)
    endpoint = worker._dispatcher.placement.pools[TaskKind.SUB][0]
    while endpoint.gone is None:
        if endpoint.ready:
            with contextlib.suppress(TaskError):
                worker.run(lambda orch, *_: orch.submit_sub(handle))
        time.sleep(0.01)
    worker.unregister(handle)


def measure(worker: Worker, handle: Any, make: Callable[[int], Arguments], count: int) -> tuple[float, float]:
    def build(orch: Any, args: Any, config: Any) -> None:
        for arguments in make(count):
            orch.submit_sub(handle, arguments)

    began, used = time.perf_counter(), time.process_time()
    worker.run(build)
    return (time.perf_counter() - began) / count, (time.process_time() - used) / count


def main(pattern: str, count: int, lost: bool) -> None:
    with Worker(3, num_sub_workers=3 if lost else 2, max_deaths=1) as worker:
        handle = worker.register(nothing)
        worker.init()
        if lost:
            lose_one(worker)
        measure(worker, handle, PATTERNS[pattern], _COLD)
        found = [measure(worker, handle, PATTERNS[pattern], count) for _ in range(max(1, _TASKS // count))]
    clock, processor = (statistics.median(values) for values in zip(*found, strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"clock": clock, "processor": processor, "peak": peak}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
