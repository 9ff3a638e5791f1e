"""What an empty task costs on a warm process, against other things that run tasks in processes."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare import Comparison, Rounds, Subject, duration, table
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet

#: Tasks of one measurement, one after the other, and all at once.
ONES, MANY, VERY_MANY = 2000, 10_000, 100_000

#: The same for systems that take a hundred times as long.
_SLOW_ONES = 300

_SCRIPT = "dispatch_tasks.py"

#: By their names in ``subjects/dispatch_tasks.py``.
_TITLES = {
    "task": "a task of an open run: submit_sub(f).wait()",
    "run": "a run of one task: worker.run(...)",
    "executor": "ProcessPoolExecutor: submit(f).result()",
    "pool": "multiprocessing.Pool: apply(f)",
    "ray": "Ray: get(f.remote())",
    "dask": "Dask distributed: submit(f).result()",
    "loky": "loky: submit(f).result()",
    "echo": "a byte to a forked process and back: the physical limit",
}

_MANY_TITLES = {
    "task": "one run of all tasks",
    "executor": "ProcessPoolExecutor: submit each, then result() of each",
    "pool": "multiprocessing.Pool: apply_async each, then get() of each",
    "task_map": "a run of one orch.map, which sends tasks in chunks",
    "pool_map": "multiprocessing.Pool: map, which sends tasks in chunks",
    "ray": "Ray: remote() each, then get of all",
    "dask": "Dask distributed: submit each, then gather all",
    "loky": "loky: submit each, then result() of each",
}

#: A mebibyte in, and one out.
_MEBIBYTE_TITLES = {
    "task_mebibyte": "a task on two tensors in shared memory",
    "executor_mebibyte": "ProcessPoolExecutor: submit(f, array).result()",
    "pool_mebibyte": "multiprocessing.Pool: apply(f, array)",
    "ray_mebibyte": "Ray: get(f.remote(array))",
}

#: One task, which has one task, which has ten.
_TREE_TITLES = {
    "task_tree": "Worker(5) above Worker(4) above Worker(3)",
    "ray_tree": "Ray: tasks that get tasks that get tasks",
}

#: Those that are asked for so many.
_AT_MOST_MANY = ("task_map", "pool_map", "ray", "dask", "loky")

_MODULES = {"ray": "ray", "dask": "distributed", "loky": "loky"}


def measure(place: Workplace, rounds: int, peers: Path, quiet: Quiet) -> dict[str, Any]:
    """Measure and print; all numbers.

    Args:
        place: where the processes run.
        rounds: paired measurements.
        peers: the interpreter that Ray and Dask are installed for.
        quiet: when to measure.
    """
    lacking = [name for name, module in _MODULES.items() if not _importable(peers, module)]
    for name in lacking:
        print(f"{_TITLES[name].partition(':')[0]}: not installed for {peers}")

    def installed(titles: dict[str, str]) -> dict[str, str]:
        return {name: title for name, title in titles.items() if name.partition("_")[0] not in lacking}

    report: dict[str, Any] = {}
    latency = Dispatches(place, "latency", peers, installed(_TITLES))
    mebibyte = Dispatches(place, "mebibyte", peers, installed(_MEBIBYTE_TITLES))
    tree = Dispatches(place, "tree", peers, installed(_TREE_TITLES))
    titles = installed(_MANY_TITLES)
    many = Dispatches(place, "throughput", peers, titles)
    fewer = {k: v for k, v in titles.items() if k not in _AT_MOST_MANY}
    very_many = Dispatches(place, "throughput", peers, fewer, VERY_MANY)
    for title, dispatches, expected in (
        ("one after the other, per task", latency, {("task", "executor"): 0.5}),
        ("a mebibyte in and one out, per task", mebibyte, {("task_mebibyte", "executor_mebibyte"): 0.5}),
        ("a tree of three levels, per tree of twelve tasks", tree, {("task_tree", "ray_tree"): 0.5}),
        (f"{MANY} at once, per task", many, {("task", "executor"): 0.7, ("task_map", "pool_map"): 2.0}),
        (f"{VERY_MANY} at once, per task", very_many, {("task", "executor"): 0.7}),
    ):
        print(f"\n-- {title}", flush=True)
        comparisons = _comparisons(dispatches.titles, expected)
        taken = Rounds(dispatches.subjects(), quiet)
        for _ in range(rounds):
            taken.add()
        print("\n".join(taken.lines(comparisons)))
        report[dispatches.name] = taken.plain(comparisons)
        if dispatches.what == "latency":
            print("", *dispatches.tails(), sep="\n")
            report["p99"] = dispatches.p99()
    return report


def _comparisons(titles: dict[str, str], expected: dict[tuple[str, str], float]) -> list[Comparison]:
    """Ours over each of the others; those that take very much longer, over ours."""
    found = []
    own = ("task", "run", "task_map", "task_mebibyte", "task_tree")
    for ours in own:
        for other, title in titles.items():
            if ours not in titles or other in own or (ours == "task_map" and other != "pool_map"):
                continue
            name = "Pool.map" if other == "pool_map" else title.partition(":")[0]
            if other in _MODULES:
                found.append(Comparison(f"{name} / {ours}", other, ours))
            else:
                found.append(Comparison(f"{ours} / {name}", ours, other, at_most=expected.get((ours, other))))
    return found


class Dispatches:
    """Measurements of one kind. ``throughput`` is that of ``many`` tasks at once, ``what`` else of one at a time."""

    def __init__(self, place: Workplace, what: str, peers: Path, titles: dict[str, str], many: int = MANY) -> None:
        self.what = what
        self.name = what if many == MANY else f"{what} of {many}"
        self._many = many
        self.titles = titles
        self._place = place
        self._peers = peers
        self._durations: dict[str, list[list[float]]] = {name: [] for name in titles}

    def subjects(self) -> dict[str, Subject]:
        """Whose times are compared."""
        return {name: Subject(title, functools.partial(self._run, name)) for name, title in self.titles.items()}

    def _run(self, name: str) -> Sequence[float]:
        other = name.partition("_")[0] in _MODULES
        python = str(self._peers) if other else sys.executable
        number = self._many if self.what == "throughput" else _SLOW_ONES if other or self.what != "latency" else ONES
        durations: list[float] = json.loads(self._place.run(python, _SCRIPT, name, self.what, str(number)))
        self._durations[name].append(durations)
        return durations

    def p99(self) -> dict[str, float]:
        """The 99th percentile of all rounds together."""
        found = {}
        for name, rounds in self._durations.items():
            durations = sorted(duration for durations in rounds for duration in durations)
            found[name] = durations[int(0.99 * len(durations))]
        return found

    def tails(self) -> list[str]:
        """A table of it."""
        return table([("p99 of all rounds", ""), *((self.titles[name], duration(p)) for name, p in self.p99().items())])


def _importable(python: Path, module: str) -> bool:
    try:
        return subprocess.run([str(python), "-c", f"import {module}"], capture_output=True).returncode == 0
    except OSError:
        return False
