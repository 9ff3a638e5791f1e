"""What collectors add to a step of the workload ``fsdp`` with two ranks, against the same trial without."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.compare import Comparison, Rounds, Subject
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet
from pytest_aorta.collectors.contract import load
from pytest_aorta.registry import Registry

#: Steps of a trial, and options of the workload; steps of the second take 200 ms and more.
_SIZES = {
    "small": (40, ()),
    "large": (16, ("dim=256", "layers=4", "batch_size=8", "sequence_length=128")),
}

#: Largest ratios of the median steps that are expected, by collector.
_EXPECTED = {"numerics": {"small": 1.3, "large": 1.1}, "divergence": {"small": 1.5, "large": 1.2}}

_OFF = ["--aorta-collect=numerics", "--aorta-collect-on-failure"]


def measure(place: Workplace, rounds: int, quiet: Quiet) -> dict[str, Any]:
    """Measure and print; all numbers, in seconds per step."""
    names = [name for name, each in _collectors().items() if each.in_process is not None]
    subjects, comparisons = {}, []
    for size in _SIZES:
        subjects[size] = Subject(f"a {size} step", _steps(place, size))
        for name in ("off", *names):
            key = f"{size} {name}"
            # Off: of a trial that passes, only failed ones have any. What it differs from 1 is noise of the machine.
            options = [f"--aorta-collect={name}"] if name != "off" else _OFF
            subjects[key] = Subject(f"with {name}", _steps(place, size, *options))
            at_most = _EXPECTED.get(name, {}).get(size)
            comparisons.append(Comparison(f"{size} step, {name} / without", key, size, at_most=at_most))
    compared = Rounds(subjects, quiet)
    for _ in range(rounds):
        compared.add()
    print("\n".join(compared.lines(comparisons)))
    return compared.plain(comparisons)


def _collectors() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in Registry.load().names("collectors"):
        try:
            found |= load([name])
        except Exception as error:
            print(f"without {name}: {error}")
    return found


def _steps(place: Workplace, size: str, *options: str) -> Callable[[], Sequence[float]]:
    number, config = _SIZES[size]
    arguments = ["--aorta-workload=fsdp", "--aorta-nproc=2", "--aorta-trials=1", f"--aorta-steps={number}", *options]
    arguments += [f"--aorta-config={each}" for each in config]

    def measured() -> Sequence[float]:
        place.wall(sys.executable, "-m", "pytest", "-q", "-p", "pytest_aorta.plugin.hooks", *arguments)
        [path] = (place.folder / "results").rglob("trial_*.json")
        times = json.loads(path.read_text())["result"]["step_times_ms"]
        return [milliseconds / 1000 for milliseconds in times[number // 4 :]]

    return measured
