"""What a trial that uses the GPU costs, beside a fresh process and a fork server that do the same with it."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.harness import Bench, Comparison, Measure, Subject
from pytest_aorta.runtime.resources.devices import find_devices


def gpu(bench: Bench) -> dict[str, Any]:
    """Each process makes a context, multiplies two matrices, and reads an element of the product."""
    if not find_devices().visible:
        print("This host has no GPU: the same is measured on its CPU, which says nothing of one.")
    number = 20

    def trials(*options: str) -> Measure:
        return lambda: bench.items("gpu_use.py::Uses", f"--aorta-trials={number}", *options)

    subjects = {
        "fresh": Subject(
            "python gpu_use.py, a fresh process", lambda: bench.wall(sys.executable, "gpu_use.py", "once")
        ),
        "server": Subject(
            "a fork server that has imported torch, a fork for each",
            lambda: bench.python("gpu_use.py", "server", str(number)),
        ),
        "fork": Subject("a trial, --aorta-isolation fork", trials("--aorta-isolation=fork")),
        "auto": Subject("a trial, --aorta-isolation auto", trials()),
        "command": Subject(
            "a trial of the command", lambda: bench.items(f"--aorta-command={_COMMAND}", "--aorta-trials=6")
        ),
    }
    comparisons = [
        Comparison("trial / fork server", "fork", "server", at_most=1.3),
        Comparison("fresh process / trial", "fresh", "fork", at_least=1),
        Comparison("trial of the command / fresh process", "command", "fresh", at_most=1.3),
    ]
    devices = bench.python("gpu_use.py", "devices")
    print(f"devices: {', '.join(devices) or 'CPU'}")
    return {"devices": devices, **bench.compare(subjects, comparisons)}


_COMMAND = f"{sys.executable} gpu_use.py once"
