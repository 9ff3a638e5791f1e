"""What a task of the runtime costs: one, many at once, graphs of many, and the processes that run them."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from functools import partial
from typing import Any

from benchmarks.harness import Bench, Comparison, Subject, duration, table, verdict

# --- dispatch: an empty task on a warm process, against other things that run tasks in processes ---------------------

#: By their names in ``subjects/dispatch_tasks.py``.
_LATENCY = {
    "task": "a task of an open run: submit_sub(f).wait()",
    "task_executor": "Executor: submit(f).result()",
    "executor": "ProcessPoolExecutor: submit(f).result()",
    "pool": "multiprocessing.Pool: apply(f)",
    "ray": "Ray: get(f.remote())",
    "dask": "Dask distributed: submit(f).result()",
    "echo": "a byte to a forked process and back: the physical limit",
}

_MANY = {
    "task": "one run of all tasks",
    "task_executor": "Executor: submit each, then result() of each",
    "executor": "ProcessPoolExecutor: submit each, then result() of each",
    "pool": "multiprocessing.Pool: apply_async each, then get() of each",
    "task_map": "a run of one orch.map, which sends tasks in chunks",
    "pool_map": "Pool.map: sends tasks in chunks",
    "ray": "Ray: remote() each, then get of all",
    "dask": "Dask distributed: submit each, then gather all",
}

_VERY_MANY = {name: title for name, title in _MANY.items() if name in ("task", "executor", "pool")}

_MEBIBYTE = {
    "task_mebibyte": "a task on two tensors in shared memory",
    "executor_mebibyte": "ProcessPoolExecutor: submit(f, array).result()",
}

#: Private memory in, a number out; the bytes of each are in ``BENCHMARK_SIZE``.
_SIZED = {
    "task_sized": "a task on a private tensor",
    "executor_sized": "ProcessPoolExecutor: submit(f, array).result()",
}

_TENSOR_SIZES = {f"{2**power // 1024} KiB": 2**power for power in (10, 14, 16, 18, 20, 22, 24, 26)}

#: One task, which has one task, which has ten.
_TREE = {
    "task_tree": "Worker(5) above Worker(4) above Worker(3)",
    "ray_tree": "Ray: tasks that get tasks that get tasks",
}

_BESIDE = ", beside two busy loops"

_MODULES = {"ray": "ray", "dask": "distributed"}


def dispatch(bench: Bench) -> dict[str, Any]:
    peers = str(bench.options.peers)
    lacking = []
    for peer, module in _MODULES.items():
        if subprocess.run([peers, "-c", f"import {module}"], capture_output=True).returncode:
            print(f"{module}: not installed for {peers}")
            lacking.append(peer)
    report: dict[str, Any] = {}
    parts: list[tuple[str, str, int, dict[str, str], float]] = [
        ("one after the other, per task", "latency", 2000, _LATENCY, 0.6),
        ("a mebibyte in and one out, per task", "latency", 300, _MEBIBYTE, 0.5),
        ("a tree of three levels, per tree of twelve tasks", "latency", 300, _TREE, 0.5),
        ("10000 at once, per task", "throughput", 10_000, _MANY, 0.6),
        ("100000 at once, per task", "throughput", 100_000, _VERY_MANY, 0.7),
        *(
            (f"a private tensor of {name}", "latency", max(8, min(200, 2**26 // size)), _SIZED, 0.8)
            for name, size in _TENSOR_SIZES.items()
        ),
    ]
    for title, what, number, titles, _ in (parts[0], parts[3]):
        parts.append((f"{title}{_BESIDE}", what, number, titles, 1.0))
    for title, what, number, titles, at_most in parts:
        print(f"\n-- {title}", flush=True)
        durations: dict[str, list[float]] = {}

        size = str(_TENSOR_SIZES.get(title.removeprefix("a private tensor of "), 0))
        busy = 2 if title.endswith(_BESIDE) else 0

        def measure(
            name: str,
            what: str = what,
            number: int = number,
            found: dict[str, list[float]] = durations,
            size: str = size,
            busy: int = busy,
        ) -> list[float]:
            peer = name.partition("_")[0] in _MODULES
            count = min(number, 300) if peer and what == "latency" else number
            python = peers if peer else sys.executable
            loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
            try:
                command = (python, "dispatch_tasks.py", name, what, str(count))
                measured: list[float] = json.loads(bench.run(*command, BENCHMARK_SIZE=size))
            finally:
                for loop in loops:
                    loop.kill()
                    loop.wait()
            found.setdefault(name, []).extend(measured)
            return measured

        subjects, comparisons = {}, []
        for name, each in titles.items():
            kind = name.partition("_")[0]
            if kind in lacking:
                continue
            subjects[name] = Subject(each, partial(measure, name))
            ours = name.replace(kind, "task") if name != "pool_map" else "task_map"
            if kind in _MODULES and kind == name:
                comparisons.append(Comparison(f"{each.partition(':')[0]} / task", name, ours))
            elif kind != "task":
                most = at_most if kind in ("executor", "ray") else 2.0 if name == "pool_map" else None
                comparisons.append(Comparison(f"task / {each.partition(':')[0]}", ours, name, at_most=most))
        report[title] = bench.compare(subjects, [each for each in comparisons if each.over in subjects])
        if titles is _LATENCY:
            p99 = {name: statistics.quantiles(values, n=100)[-1] for name, values in durations.items()}
            print(
                "", *table([("p99 of all rounds", ""), *((titles[n], duration(p)) for n, p in p99.items())]), sep="\n"
            )
            report["p99"] = p99
    return report


# --- scaling: graphs of 1,000 to 1,000,000 tasks, with all workers and with one out of service -----------------------

_SIZES = (1_000, 10_000, 100_000)

#: By their names in ``subjects/scaling_graphs.py``.
_PATTERNS = ("independent", "chain", "fans", "rows", "columns", "tiles")

#: The largest growth of the processor time per task that is expected, from the first size to the last one.
_GROWTH = 1.3


def scaling(bench: Bench) -> dict[str, Any]:
    """Of the process that submits: what others on the machine disturb least, and what would grow."""

    def cost(pattern: str, size: int, lost: int, rounds: int) -> dict[str, float]:
        found: list[dict[str, float]] = []

        def once() -> list[float]:
            found.append(bench.python("scaling_graphs.py", pattern, str(size), str(lost)))
            return []

        for _ in range(rounds):
            bench.quietly(once)
        return {name: statistics.median(each[name] for each in found) for name in found[0]}

    report: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = [
        ("processor time per task", *(f"{size:,}" for size in _SIZES), "growth", "clock", "peak memory")
    ]
    for lost in (0, 1):
        for pattern in _PATTERNS:
            costs = [cost(pattern, size, lost, bench.options.rounds) for size in _SIZES]
            growth = costs[-1]["processor"] / costs[0]["processor"]
            name = f"{pattern}, one of three workers lost" if lost else pattern
            report[name] = {"costs": dict(zip(_SIZES, costs, strict=True)), "growth": growth}
            shown = [duration(each["processor"]) for each in costs]
            peak = f"{costs[-1]['peak'] / 2**20:.0f} MiB"
            growing = f"{growth:.2f} ({verdict(growth <= _GROWTH)})"
            rows.append((name, *shown, growing, duration(costs[-1]["clock"]), peak))
            print("  ".join(rows[-1]), flush=True)  # it takes minutes
    print("", *table(rows), sep="\n")
    size = 1_000_000
    most = cost("independent", size, 0, 1)
    growth = most["processor"] / report["independent"]["costs"][_SIZES[0]]["processor"]
    report[f"{size}"] = {"costs": most, "growth": growth}
    times = f"{duration(most['processor'])} of the processor, {duration(most['clock'])} of the clock"
    print(f"{size:,} independent tasks: each {times}, {most['peak'] / size:.0f} bytes")
    print(f"their growth {growth:.2f} ({verdict(growth <= _GROWTH)}): at most {_GROWTH} expected")
    return report


# --- leaves: the processes below a worker, their start, number and memory, with torch and without --------------------

#: By their names in ``subjects/leaf_start.py``.
_KINDS = {
    "sub": "8 SUB workers",
    "devices": "8 slots with a device each",
    "tree": "7 leaves: 2 workers with 1 device and 2 SUB workers each, and 1 SUB worker above",
}


def leaves(bench: Bench) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {}

    def start(name: str) -> list[float]:
        folders = {name: bench.folder / name for name in ("leaves", "leases")}
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        environ = {"BENCHMARK_LEAVES": str(folders["leaves"]), "PYTEST_AORTA_LEASES_DIR": str(folders["leases"])}
        found.setdefault(name, []).append(bench.python("leaf_start.py", *name.split(), **environ))
        return [found[name][-1]["start"]]

    subjects = {
        f"{kind}{torch}": Subject(f"{title}{torch and ', torch'}", partial(start, f"{kind}{torch}"))
        for torch in ("", " torch")
        for kind, title in _KINDS.items()
    }
    comparisons = (
        Comparison("device slots / SUB workers", "devices", "sub", at_most=2),
        Comparison("device slots / SUB workers, torch", "devices torch", "sub torch", at_most=2),
    )
    print("-- init() of a worker")
    report = bench.compare(subjects, comparisons)
    rows: list[tuple[str, ...]] = [
        ("memory in MiB", "leaves", "processes", "PSS per leaf", "RSS per leaf", "PSS of a leaf", "RSS of a leaf")
    ]
    report["memory"] = {}
    for name, each in found.items():
        medians = {key: statistics.median(one[key] for one in each) for key in each[0]}
        report["memory"][name] = medians
        number = medians["leaves"]
        sizes = (medians["pss"] / number, medians["rss"] / number, medians["leaf_pss"], medians["leaf_rss"])
        mib = [f"{size / 2**20:.1f}" for size in sizes]
        rows.append((subjects[name].title, f"{number:.0f}", f"{medians['processes']:.0f}", *mib))
    print("", *table(rows), "(per leaf: of all processes below the worker, zygotes included)", sep="\n")
    return report
