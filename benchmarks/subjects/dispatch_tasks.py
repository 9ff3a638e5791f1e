"""Empty tasks on warm processes: ``dispatch_tasks.py SYSTEM WHAT NUMBER`` prints seconds as JSON.

Every system is measured in a fresh process of its own, so that idle servers of one do not take the cores of another.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

#: Worker processes of every system.
WORKERS = 2

#: Tasks that do not count: they start what later ones find started.
_COLD = 100

#: How long each of a number of tasks takes, one after the other; and: submit a number of tasks, then wait for all.
System = tuple[Callable[[int], list[float]], Callable[[int], object]]


def nothing(*_: Any) -> None:
    pass


def timed(one: Callable[[], object], number: int) -> list[float]:
    """Durations of calls."""
    durations = []
    for _ in range(number):
        start = time.perf_counter()
        one()
        durations.append(time.perf_counter() - start)
    return durations


@contextlib.contextmanager
def task() -> Iterator[System]:
    from pytest_aorta.runtime import Worker

    with Worker(3, num_sub_workers=WORKERS) as worker:
        handle = worker.register(nothing)
        worker.init()

        def latencies(number: int) -> list[float]:
            durations: list[float] = []
            worker.run(lambda orch, *_: durations.extend(timed(lambda: orch.submit_sub(handle).wait(), number)))
            return durations

        def many(number: int) -> None:
            def build(orch: Any, args: Any, config: Any) -> None:
                for _ in range(number):
                    orch.submit_sub(handle)

            worker.run(build)

        yield latencies, many


@contextlib.contextmanager
def task_map() -> Iterator[System]:
    """Which sends tasks in chunks, and has no single ones."""
    from pytest_aorta.runtime import Worker

    with Worker(3, num_sub_workers=WORKERS) as worker:
        handle = worker.register(nothing)
        worker.init()

        def many(number: int) -> None:
            worker.run(lambda orch, *_: orch.map(handle, range(number)).wait())

        yield lambda number: [], many


@contextlib.contextmanager
def executor() -> Iterator[System]:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(WORKERS) as pool:

        def many(number: int) -> None:
            for future in [pool.submit(nothing) for _ in range(number)]:
                future.result()

        yield lambda number: timed(lambda: pool.submit(nothing).result(), number), many


@contextlib.contextmanager
def pool() -> Iterator[System]:
    from multiprocessing import Pool

    with Pool(WORKERS) as workers:

        def many(number: int) -> None:
            for result in [workers.apply_async(nothing) for _ in range(number)]:
                result.get()

        yield lambda number: timed(lambda: workers.apply(nothing), number), many


@contextlib.contextmanager
def pool_map() -> Iterator[System]:
    """Which sends tasks in chunks, and has no single ones."""
    from multiprocessing import Pool

    with Pool(WORKERS) as workers:
        yield lambda number: [], lambda number: workers.map(nothing, range(number))


@contextlib.contextmanager
def echo() -> Iterator[System]:
    """A byte to a forked process and back: no system at all, but what every one of them is built on."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        while theirs.recv(1):
            theirs.send(b"x")
        os._exit(0)
    theirs.close()

    def one() -> None:
        ours.send(b"x")
        ours.recv(1)

    try:
        yield lambda number: timed(one, number), lambda number: timed(one, number)
    finally:
        ours.close()
        os.waitpid(child, 0)


@contextlib.contextmanager
def ray() -> Iterator[System]:
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    remote = ray.remote(nothing)
    try:
        yield (
            lambda number: timed(lambda: ray.get(remote.remote()), number),
            lambda number: ray.get([remote.remote() for _ in range(number)]),
        )
    finally:
        ray.shutdown()


@contextlib.contextmanager
def dask() -> Iterator[System]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(WORKERS, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield (
            lambda number: timed(lambda: client.submit(nothing, pure=False).result(), number),
            lambda number: client.gather([client.submit(nothing, pure=False) for _ in range(number)]),
        )


@contextlib.contextmanager
def task_executor() -> Iterator[System]:
    from pytest_aorta.runtime import Executor

    with Executor(WORKERS) as pool:

        def many(number: int) -> None:
            for future in [pool.submit(nothing) for _ in range(number)]:
                future.result()

        yield lambda number: timed(lambda: pool.submit(nothing).result(), number), many


# Private memory of BENCHMARK_SIZE bytes in


def first(array: Any) -> float:
    return float(array[0])


def first_of(args: Any) -> float:
    return float(args.tensors[0][0])


@contextlib.contextmanager
def task_sized() -> Iterator[System]:
    import torch

    from pytest_aorta.runtime import TaskArgs, Worker

    source = torch.ones(int(os.environ["BENCHMARK_SIZE"]) // 4)
    with Worker(3, num_sub_workers=WORKERS) as worker:
        handle = worker.register(first_of)

        def latencies(number: int) -> list[float]:
            durations: list[float] = []

            def build(orch: Any, args: Any, config: Any) -> None:
                durations.extend(timed(lambda: orch.submit_sub(handle, TaskArgs().add(source)).wait(), number))

            worker.run(build)
            return durations

        yield latencies, lambda number: None


@contextlib.contextmanager
def executor_sized() -> Iterator[System]:
    from concurrent.futures import ProcessPoolExecutor

    import numpy as np

    array = np.ones(int(os.environ["BENCHMARK_SIZE"]) // 4, dtype=np.float32)
    with ProcessPoolExecutor(WORKERS) as pool:
        yield _alone(lambda: pool.submit(first, array).result())


# A mebibyte in, and one out


def plus_one(array: Any) -> Any:
    return array + 1


def plus_one_in_place(args: Any) -> None:
    import torch

    torch.add(args.tensors[0], 1, out=args.tensors[1])


def _alone(one: Callable[[], object]) -> System:
    return lambda number: timed(one, number), lambda number: None


@contextlib.contextmanager
def task_mebibyte() -> Iterator[System]:
    import torch

    from pytest_aorta.runtime import Tag, TaskArgs, Worker

    with Worker(3, num_sub_workers=WORKERS) as worker:
        handle = worker.register(plus_one_in_place)
        source, target = torch.ones(2, 2**18).share_memory_()  # type: ignore[no-untyped-call]

        def latencies(number: int) -> list[float]:
            durations: list[float] = []

            def build(orch: Any, args: Any, config: Any) -> None:
                def one() -> None:
                    orch.submit_sub(handle, TaskArgs().add(source).add(target, Tag.OUTPUT)).wait()

                durations.extend(timed(one, number))

            worker.run(build)
            return durations

        yield latencies, lambda number: None


@contextlib.contextmanager
def executor_mebibyte() -> Iterator[System]:
    from concurrent.futures import ProcessPoolExecutor

    import numpy as np

    array = np.ones(2**18, dtype=np.float32)
    with ProcessPoolExecutor(WORKERS) as pool:
        yield _alone(lambda: pool.submit(plus_one, array).result())


# A tree of three levels: one task has one task, which has ten

LEAVES = 10


@contextlib.contextmanager
def task_tree() -> Iterator[System]:
    from pytest_aorta.runtime import Worker

    host, group, top = Worker(3, num_sub_workers=WORKERS), Worker(4), Worker(5)
    group.add_worker(host)
    top.add_worker(group)
    leaf = top.register(nothing)

    def on_host(orch: Any, args: Any, config: Any) -> None:
        for _ in range(LEAVES):
            orch.submit_sub(leaf)

    below = top.register(on_host)
    middle = top.register(lambda orch, args, config: orch.submit_next_level(below))
    with top:
        yield _alone(lambda: top.run(lambda orch, *_: orch.submit_next_level(middle)))


@contextlib.contextmanager
def ray_tree() -> Iterator[System]:
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    leaf = ray.remote(nothing)
    below = ray.remote(lambda: ray.get([leaf.remote() for _ in range(LEAVES)]))
    middle = ray.remote(lambda: ray.get(below.remote()))
    yield _alone(lambda: ray.get(middle.remote()))
    ray.shutdown()


SYSTEMS = {
    system.__name__: system
    for system in (
        *(task, task_executor, task_sized, executor_sized, task_map, executor, pool, pool_map, echo, ray, dask),
        *(task_mebibyte, executor_mebibyte, task_tree, ray_tree),
    )
}


def main() -> None:
    """Measure what the command line asks for."""
    system, what, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with SYSTEMS[system]() as (latencies, many):
        latencies(5 if "sized" in system else _COLD)
        many(_COLD)
        if what == "throughput":
            print(json.dumps([seconds / number for seconds in timed(lambda: many(number), 1)]))
        else:
            print(json.dumps(latencies(number)))


if __name__ == "__main__":
    main()
