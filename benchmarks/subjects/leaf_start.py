"""A worker with processes below it: ``leaf_start.py KIND [torch]`` prints what its start takes and what lives then.

As JSON: ``start`` in seconds; the number of ``leaves``, and of all ``processes`` below; in bytes, ``pss`` and ``rss``
of all of them together, and ``leaf_pss`` and ``leaf_rss``, which are those of one leaf.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil

#: Leaves of the kinds ``sub`` and ``devices``.
LEAVES = 8


def leaf(args: Any) -> None:
    """A task that makes itself known."""
    Path(os.environ["BENCHMARK_LEAVES"], str(os.getpid())).touch()


def prepare() -> None:
    """Run in every leaf when it starts."""
    leaf(None)


def worker(kind: str) -> Any:
    """A worker that has not been started."""
    from pytest_aorta.runtime import Worker

    if kind == "sub":
        return Worker(3, num_sub_workers=LEAVES, prepare=prepare)
    if kind == "devices":
        return Worker(3, device_ids=range(LEAVES), prepare=prepare)
    top = Worker(4, num_sub_workers=1, prepare=prepare)
    for number in range(2):
        top.add_worker(Worker(3, device_ids=[number], num_sub_workers=2, prepare=prepare))
    return top


def memory(pid: int) -> dict[str, int]:
    """Resident bytes of a process: ``Rss``, and ``Pss``, which counts a page by the part of it that is its own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}


def main() -> None:
    """Measure what the command line asks for."""
    if "torch" in sys.argv[2:]:
        import torch  # noqa: F401

    start = time.perf_counter()
    with worker(sys.argv[1]) as started:
        started.init()
        seconds = time.perf_counter() - start
        used = {process.pid: memory(process.pid) for process in psutil.Process().children(recursive=True)}
        leaves = [used[int(file.name)] for file in Path(os.environ["BENCHMARK_LEAVES"]).iterdir()]
    found = {"start": seconds, "leaves": len(leaves), "processes": len(used)}
    for name in ("Pss", "Rss"):
        found[name.lower()] = sum(each[name] for each in used.values())
        found[f"leaf_{name.lower()}"] = statistics.median(each[name] for each in leaves)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
