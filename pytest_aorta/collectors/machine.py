"""What trials use of the machine: time (``profile``, ``rocprof``, ``nsys``, ...), ``memory``; where they crash.

None of the tools of vendors sets a variable that chooses devices, or one of another vendor.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.collectors.contract import Collector, CollectorError, CollectorSummary, Context, Preparation, Value
from pytest_aorta.common.texts import native_function

_IN_PROCESS = Path(__file__).with_name("in_process")

# Memory

_MIB = 2**20

#: Bytes that a leak adds at least, in all, to be named: less is not worth a sentence.
_LEAST = 4 * _MIB

#: Steps behind the warm-up, at least: with fewer, nothing is said about growth.
_FEWEST = 8

#: Columns of ``rank_R.jsonl``, and what is told of each.
_COLUMNS = ("held", "resident", "resident_peak", "device", "device_peak")
_NAMES = {"device": "memory on the device", "held": "memory on the host", "resident": "resident memory on the host"}


@dataclass(frozen=True)
class Growth:
    """Bytes per step, with their 99 % interval; from one step to another."""

    bytes_per_step: float
    low: float
    high: float
    first_step: int
    last_step: int

    @property
    def is_leak(self) -> bool:
        return self.low > 0 and self.bytes_per_step * (self.last_step - self.first_step) >= _LEAST

    def __str__(self) -> str:
        unit, name = (_MIB, "MiB") if self.bytes_per_step >= _MIB / 10 else (1024, "KiB")
        mean, low, high = (each / unit for each in (self.bytes_per_step, self.low, self.high))
        return f"by {mean:.2f} {name} a step ({low:.2f} to {high:.2f})"


def growth(values: Sequence[tuple[int, float]]) -> Growth | None:
    """By how much a quantity grows per step, after a warm-up of a fourth of the steps.

    The changes from step to step are the sample (Student's t): a few jumps of any size, as allocators and caches make
    them, do not exclude 0, and neither do ups and downs. A leak also grows in each third of the time: where it has
    not, the lower bound is at most 0. ``None`` for too few steps.
    """
    values = values[max(2, len(values) // 4) :]
    changes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in pairwise(values)
        if later[0] > earlier[0]
    ]
    n = len(changes)
    if n < _FEWEST:
        return None
    from scipy.special import stdtrit

    mean = (values[-1][1] - values[0][1]) / (values[-1][0] - values[0][0])
    squares = sum((change - mean) ** 2 for change in changes)
    half = float(stdtrit(n - 1, 0.995)) * math.sqrt(squares / (n - 1) / n)
    thirds = [values[n * part // 3][1] for part in range(4)]
    low = mean - half
    if any(after <= before for before, after in pairwise(thirds)):
        low = min(low, 0.0)
    return Growth(mean, low, mean + half, values[0][0], values[-1][0])


class Memory(Collector):
    """Memory of each rank after each step, on the host and on the device; a leak is named with its growth per step."""

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {
        "history": (100_000, "allocations that a snapshot of the device's allocator goes back; 0 for none"),
    }
    in_process = _IN_PROCESS / "memory.py"

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        data: dict[str, Any] = {}
        leaks: list[tuple[float, str]] = []
        ended: list[str] = []
        for path in sorted(folder.rglob("*.jsonl")):
            who = path.stem.replace("_", " ")
            lines = []
            for text in path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):  # cut off
                    lines.append(json.loads(text))
            if not lines:
                continue
            # At the distance of the last ones: earlier ones were written for more steps.
            stride = max(1, lines[-1][0] - lines[-2][0]) if len(lines) > 2 else 1
            lines = [line for line in lines if line[0] % stride == 0] or lines
            rank: dict[str, Any] = {"steps": lines[-1][0]}
            for number, column in enumerate(_COLUMNS, 1):
                series = [(line[0], line[number]) for line in lines if line[number] is not None]
                if not series:
                    continue
                rank[column] = {
                    "first": series[0][1],
                    "last": series[-1][1],
                    "most": max(each for _, each in series),
                }
                if column == "resident":
                    # Not what malloc keeps for later: a heap grows by that until it has settled, without a leak.
                    series = [(line[0], line[number] - (line[-1] or 0)) for line in lines if line[number] is not None]
                if column in _NAMES and (grows := growth(series)) is not None:
                    rank[column] |= {"growth": asdict(grows), "is_leak": grows.is_leak}
                    if grows.is_leak and not any(text.startswith(who) for _, text in leaks[-1:]):
                        span = f"from {self.step_name(grows.first_step)} to {self.step_name(grows.last_step)}"
                        leaks.append((grows.bytes_per_step, f"{who}: {_NAMES[column]} grows {grows} {span}"))
            data[path.stem] = rank
        for path in sorted(folder.rglob("*.out_of_memory.json")):
            wanted, free = (json.loads(path.read_text())[name] / _MIB for name in ("wanted", "free"))
            who = path.name.partition(".")[0].replace("_", " ")
            ended.append(f"{who}: the device had no {wanted:.0f} MiB left ({free:.0f} MiB were free)")
        if not data:
            return CollectorSummary("nothing was measured: no step was seen")
        leaks.sort(reverse=True)
        told = ended[:1] + [text for _, text in leaks[:1]]
        more = len(leaks) - 1
        if more > 0:
            told[-1] += f"; so does that of {more} more rank{'s' if more > 1 else ''}"
        return CollectorSummary("; ".join(told), data, [path for path in sorted(folder.rglob("*")) if path.is_file()])


# Crashes


class Native(Collector):
    """The C and C++ frames of every thread of a process that crashes or hangs, by gdb."""

    needs_torch = False
    in_process = _IN_PROCESS / "native.py"

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        data: dict[str, Any] = {}
        sentences = []
        paths = sorted(folder.rglob("*.json"))
        for path in paths:
            read = json.loads(path.read_text())
            who = path.stem.replace("_", " ")
            frames = read["threads"][0]["frames"] if read["threads"] else []
            name, library = native_function((frame["name"], frame["file"]) for frame in frames)
            place = f"{name}() of {library}" if name else ""
            what = "hung" if read["why"] == "hang" else read["why"]
            sentences.append(f"{who}: {what}" + (f" in {place}" if place else "; no C function of it is known"))
            data[path.stem] = {"why": read["why"], "function": name, "library": library}
        return CollectorSummary("; ".join(sentences), data, paths)


# Time

#: Operators with less than this part of all operators' time are left out of the record; the trace has them.
_LEAST_SHARE = 0.001


class Profile(Collector):
    """Torch's profiler over a few steps: a Chrome trace per rank, and what takes longer than in the baseline."""

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {
        "skip": (3, "steps before the window"),
        "steps": (5, "steps of the window"),
    }
    excludes = frozenset({"rocprof", "nsys", "proton"})
    in_process = _IN_PROCESS / "profile.py"

    def __init__(self, given: Mapping[str, Value]) -> None:
        super().__init__(given)
        for name, least in (("skip", 0), ("steps", 1)):
            if int(self.given[name]) < least:
                raise CollectorError(f"--aorta-collect profile:{name}={self.given[name]}: expected at least {least}")

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        read = {path.stem: json.loads(path.read_text()) for path in sorted(folder.rglob("*.json"))}
        traces = sorted(folder.rglob("*.trace.json.gz"))
        profiles = {stem: each for stem, each in read.items() if each["steps"]}
        if not profiles:
            seen = max((each["seen"] for each in read.values()), default=0)
            why = (
                f"the trial made {seen}, and the window begins after {self.given['skip']}" if seen else "none was seen"
            )
            return CollectorSummary(f"no step was profiled: {why}", {}, traces)
        # Own time of each operator, in ms per step, of the rank in which it takes longest: a rank that lags makes
        # others wait, and would be hidden in a mean.
        most: dict[str, float] = {}
        for profile in profiles.values():
            for name, (_, host_us, device_us) in profile["operators"].items():
                for key, microseconds in ((name, host_us), (f"{name} (device)", device_us)):
                    if microseconds > 0:
                        most[key] = max(most.get(key, 0.0), microseconds / 1000 / profile["steps"])
        operators = dict(sorted(most.items(), key=lambda item: -item[1]))
        total = sum(operators.values())
        notes = sorted({each["note"] for each in profiles.values() if each["note"]})
        return CollectorSummary(
            "; ".join(notes),
            {
                "steps": {stem: each["steps"] for stem, each in profiles.items()},
                "step_ms": {stem: 1000 * each["wall_sec"] / each["steps"] for stem, each in profiles.items()},
                "operators": {name: ms for name, ms in operators.items() if ms >= _LEAST_SHARE * total},
            },
            traces,
        )


#: Kernels of a record, those first that take most time.
_KERNELS = 100


def _words(text: object) -> list[str]:
    """``kernel+hip``, as a comma begins another collector; commas and blanks do as well where they come in a recipe."""
    return re.split(r"[+,\s]+", str(text).strip("+, ")) if str(text).strip("+, ") else []


def _one_of(name: str, option: str, given: object, valid: Collection[str], *, several: bool = False) -> None:
    words = _words(given) if several else [str(given)]
    if wrong := sorted({*words} - {*valid}) or (["nothing"] if several and not words else []):
        raise CollectorError(f"--aorta-collect {name}:{option}={given}: {wrong[0]} is none of {', '.join(valid)}")


def _most_time(calls: Mapping[str, Sequence[float]], tool: str, files: Sequence[Path], **more: Any) -> CollectorSummary:
    """The summary of kernels with their calls and milliseconds."""
    if not calls:
        return CollectorSummary(f"{tool} has seen no kernel", more, files)
    ordered = sorted(calls.items(), key=lambda item: -item[1][1])
    total = sum(milliseconds for _, (_, milliseconds) in ordered) or 1.0
    names = ", ".join(f"{name} {each[1] / total:.0%}" for name, each in ordered[:3])
    data: dict[str, Any] = {name: {"calls": each[0], "ms": each[1]} for name, each in ordered[:_KERNELS]}
    return CollectorSummary(f"most time on the device: {names}", {"kernels": data, **more}, files)


def _sums(files: Iterable[Path], suffix: str, name: str, *columns: str) -> dict[str, list[float]]:
    """Sums of columns of tables whose file names end so, by the text in the column ``name``."""
    sums: dict[str, list[float]] = {}
    for path in files:
        if path.name.endswith(suffix):
            with path.open(newline="", errors="replace") as file:
                for row in csv.DictReader(file):
                    try:
                        values = [float(row[column]) for column in columns]
                    except (KeyError, TypeError, ValueError):  # a line that is cut off
                        continue
                    if all(math.isfinite(value) and value >= 0 for value in values):
                        before = sums.get(row[name], [0.0] * len(values))
                        sums[row[name]] = [one + other for one, other in zip(before, values, strict=True)]
    return sums


class Rocprof(Collector):
    """AMD's ``rocprofv3`` in front of each trial: the time of each kernel on the device, per process."""

    #: What it traces, and its options for that.
    traces: ClassVar[Mapping[str, str]] = {
        **{name: f"--{name.replace('_', '-')}-trace" for name in ("kernel", "hip", "hip_runtime", "memory_copy")},
        **{"rccl": "--rccl-trace", "marker": "--marker-trace", "scratch": "--scratch-memory-trace"},
    }
    options: ClassVar[Mapping[str, tuple[Value, str]]] = {
        "trace": ("kernel", f"what it traces, joined by +: {', '.join(traces)}"),
        "output_format": ("csv", "csv, which is read into a sentence, json, pftrace, otf2 or rocpd"),
        "stats": (True, "sums per kernel"),
        "pmc": ("", "hardware counters, joined by +"),
        "kernel_include_regex": ("", "only kernels whose names match"),
        "summary_units": ("", "sec, msec, usec or nsec: a summary in a file of its own"),
    }
    excludes = frozenset({"nsys", "profile", "proton"})  # two profilers cannot intercept the same queues

    def __init__(self, given: Mapping[str, Value]) -> None:
        super().__init__(given)
        _one_of("rocprof", "trace", self.given["trace"], self.traces, several=True)
        _one_of("rocprof", "output_format", self.given["output_format"], ("csv", "json", "pftrace", "otf2", "rocpd"))
        _one_of("rocprof", "summary_units", self.given["summary_units"], ("", "sec", "msec", "usec", "nsec"))

    def preparation(self, context: Context) -> Preparation:
        tool, given = _tool("rocprofv3", "it comes with ROCm 6.2 and later, in /opt/rocm/bin", context), self.given
        words = [self.traces[each] for each in dict.fromkeys(_words(given["trace"]))] + ["--stats"] * bool(
            given["stats"]
        )
        words += ["--output-format", str(given["output_format"]), "-d", str(context.folder), "-o", "process_%pid%"]
        if given["summary_units"]:
            words += ["-S", "--summary-output-file", "summary", "-u", str(given["summary_units"])]
        if given["kernel_include_regex"]:
            words += ["--kernel-include-regex", str(given["kernel_include_regex"])]
        if counters := _words(given["pmc"]):
            words += ["--pmc", *counters]  # takes all words up to the next option
        return Preparation(prefix=(tool, *words, "--"))

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        files = _files(folder)
        counters = _sums(files, "counter_collection.csv", "Counter_Name", "Counter_Value")
        more: dict[str, Any] = {"counters": {name: value for name, (value,) in counters.items()}} if counters else {}
        if (
            self.given["output_format"] != "csv"
            or "kernel" not in _words(self.given["trace"])
            or not self.given["stats"]
        ):
            return CollectorSummary("" if files else "rocprofv3 has written nothing", more, files)
        sums = _sums(files, "kernel_stats.csv", "Name", "Calls", "TotalDurationNs")
        calls = {name: (number, nanoseconds / 1e6) for name, (number, nanoseconds) in sums.items()}
        return _most_time(calls, "rocprofv3", files, **more)


class Nsys(Collector):
    """NVIDIA's ``nsys profile`` in front of each trial: a report for the viewer, and the time of each kernel."""

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {
        "trace": ("cuda+nvtx+osrt", "what nsys traces, joined by +"),
        "stats": (True, "read the kernels with nsys stats, where the trial is over"),
    }
    excludes = frozenset({"rocprof", "profile", "proton"})

    def preparation(self, context: Context) -> Preparation:
        tool = _tool("nsys", "it comes with NVIDIA's CUDA toolkit and with Nsight Systems", context)
        traces = ",".join(_words(self.given["trace"]))
        asked = (f"--trace={traces}", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true")
        return Preparation(prefix=(tool, "profile", *asked, "-o", str(context.folder / "profile")))

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        reports = [path for path in _files(folder) if path.suffix in (".nsys-rep", ".qdrep")]
        if not reports:
            return CollectorSummary("nsys has written no report", {}, _files(folder))
        tool = shutil.which("nsys")
        if not self.given["stats"] or tool is None:
            return CollectorSummary("", {}, _files(folder))
        for report in reports:
            words = ["stats", "--report", "cuda_gpu_kern_sum", "--format", "csv", "--force-export=true", "--output"]
            with contextlib.suppress(OSError, subprocess.SubprocessError):  # the report is there all the same
                subprocess.run(
                    [tool, *words, str(report.with_suffix("")), str(report)], timeout=60, capture_output=True
                )
        files = _files(folder)
        sums = _sums(files, "cuda_gpu_kern_sum.csv", "Name", "Instances", "Total Time (ns)")
        if not any(path.name.endswith("cuda_gpu_kern_sum.csv") for path in files):
            return CollectorSummary("", {}, files)
        return _most_time({name: (number, each / 1e6) for name, (number, each) in sums.items()}, "nsys", files)


class Proton(Collector):
    """Triton's own profiler in each rank: the time of each kernel, by where it was called."""

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {
        "mode": ("cli", "as proton's own command does; a program that calls proton itself needs no collector"),
        "backend": ("auto", "auto, cupti, rocprofiler, roctracer or instrumentation"),
        "context": ("shadow", "shadow, or python: kernels by the Python frames that launch them"),
        "data": ("tree", "tree, which is read into a sentence, or trace"),
        "instrumentation_mode": ("", "of the backend instrumentation: default, mma or pcsampling"),
        "granularity": ("", "of the backend instrumentation: cta, warp, warp_2, warp_group, ..."),
    }
    excludes = frozenset({"rocprof", "nsys", "profile"})
    in_process = _IN_PROCESS / "proton.py"

    def __init__(self, given: Mapping[str, Value]) -> None:
        super().__init__(given)
        backends = ("auto", "cupti", "rocprofiler", "roctracer", "instrumentation")
        inside = {"instrumentation_mode": ("", "default", "mma", "pcsampling"), "granularity": ("", *_GRANULARITIES)}
        valid = {
            "mode": ("cli",),
            "backend": backends,
            "context": ("shadow", "python"),
            "data": ("tree", "trace"),
            **inside,
        }
        for option, words in valid.items():
            _one_of("proton", option, self.given[option], words)
        if any(map(self.given.get, inside)) and self.given["backend"] != "instrumentation":
            raise CollectorError(f"--aorta-collect proton: {' and '.join(inside)} need backend=instrumentation")

    def preparation(self, context: Context) -> Preparation:
        if not _has_proton(context.python):
            raise CollectorError(
                f"{context.python} has no triton.profiler; it comes with pip install triton, and with torch for GPUs. "
                "profile does without it"
            )
        return Preparation()

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        files = _files(folder)
        calls: dict[str, list[float]] = {}
        for path in files:
            if path.suffix == ".hatchet":
                with contextlib.suppress(ValueError):  # cut off
                    read = json.loads(path.read_text(errors="replace"))
                    _add_leaves(read if isinstance(read, list) else [read], calls)
        if self.given["data"] != "tree":
            return CollectorSummary("" if files else "proton has written nothing", {}, files)
        return _most_time(calls, "proton", files)


_GRANULARITIES = ("cta", *(f"warp{of}{number}" for of in ("", "_group") for number in ("", "_2", "_4", "_8")))


@cache
def _has_proton(python: str) -> bool:
    told = "import importlib.util as u, os; s = u.find_spec('triton'); p = s and s.submodule_search_locations or []"
    code = f"{told}; print(any(os.path.isdir(os.path.join(each, 'profiler')) for each in p))"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
        return done.stdout.strip() == "True"
    return False


def _add_leaves(nodes: Iterable[Any], calls: dict[str, list[float]]) -> None:
    """Add the calls and milliseconds of the kernels, which are the leaves of the tree, by their names."""
    for node in nodes:
        if not isinstance(node, dict):
            continue
        below = node.get("children") or []
        _add_leaves(below, calls)
        metrics = node.get("metrics") or {}
        with contextlib.suppress(KeyError, TypeError, ValueError):  # no time, as of the root
            milliseconds = float(metrics["time (ns)"]) / 1e6
            if not below and math.isfinite(milliseconds):
                call = calls.setdefault(str(node["frame"]["name"]), [0, 0.0])
                call[0] += int(metrics.get("count", 0))
                call[1] += milliseconds


class AmdLog(Collector):
    """The log of AMD's HIP runtime: each call, kernel and copy of each process."""

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {"level": (3, "AMD_LOG_LEVEL, 1 (errors) to 5 (all)")}

    def __init__(self, given: Mapping[str, Value]) -> None:
        super().__init__(given)
        if not 1 <= int(self.given["level"]) <= 5:
            raise CollectorError(f"--aorta-collect amd_log:level={self.given['level']}: expected 1 to 5")

    def preparation(self, context: Context) -> Preparation:
        log = str(context.folder / "hip.log")  # the runtime appends the number of the process
        return Preparation({"AMD_LOG_LEVEL": str(self.given["level"]), "AMD_LOG_LEVEL_FILE": log})

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        files = _files(folder)
        errors = []
        for path in files:
            with path.open(errors="replace") as log:
                errors += [line.rstrip() for line in log if line.startswith(":1:")]
        if not files:
            return CollectorSummary("no process has used AMD's HIP runtime")
        return CollectorSummary(
            f"{len(errors)} errors, first: {errors[0][:200]}" if errors else "", {"errors": errors[:20]}, files
        )


def _tool(name: str, where: str, context: Context) -> str:
    path = shutil.which(name, path=context.environ.get("PATH"))
    if path is None:
        raise CollectorError(f"{name} is not on the trial's PATH; {where}")
    return path


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
