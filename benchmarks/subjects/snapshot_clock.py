"""What the snapshots of a trial take in forked children. Durations in seconds by name, as JSON on stdout.

``snapshot_clock.py FORKS SOURCE``: children, and a file in a repository of the size that is to be measured.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pytest_aorta.probe.collect import collect_end, collect_env, collect_static
from pytest_aorta.probe.loaded import Watch

#: Variables that a plan sets; libraries name some of them.
WATCHED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "DISABLE_TF32", "ONEDNN_MAX_CPU_ISA", "A_MADE_UP_VARIABLE")


def in_a_fork(measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What ``measure`` returns in a forked child."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, json.dumps(measure()).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as pipe:
        found: dict[str, float] = json.loads(pipe.read())
    return found


def both() -> tuple[float, float]:
    """Both snapshots, as a trial takes them around its work: processor time, the kernel's included."""
    begin = time.thread_time()
    collect_env(static).to_dict()
    between = time.thread_time()
    torch.ones(8).sum()
    middle = time.thread_time()
    collect_end()
    return between - begin, time.thread_time() - middle


def search() -> float:
    """Looking for what names the watched variables: processor time."""
    watch = Watch(WATCHED)
    begin = time.thread_time()
    watch.look()
    return time.thread_time() - begin


def start_and_end() -> dict[str, float]:
    """The snapshots in a child that has not been warmed up, and again in one that has."""
    start, end = both()
    warm_start, warm_end = both()
    return {
        "cold: watched variables": search(),
        "warm: watched variables": search(),
        "cold: start": start,
        "cold: end": end,
        "warm: start": warm_start,
        "warm: end": warm_end,
        "warm: both": warm_start + warm_end,
    }


source = Path(sys.argv[2])
begin = time.perf_counter()
static = collect_static(source)
found: dict[str, list[float]] = {"static": [time.perf_counter() - begin]}
with tempfile.TemporaryDirectory() as cache:
    os.environ["XDG_CACHE_HOME"] = cache
    found["watched variables, searched"] = [in_a_fork(lambda: {"": search()})[""]]
    for _ in range(int(sys.argv[1])):
        for name, seconds in in_a_fork(start_and_end).items():
            found.setdefault(name, []).append(seconds)
print(json.dumps(found))
