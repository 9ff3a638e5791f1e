"""``rocprof``, ``nsys``, ``amd_log``: tools of vendors, started in front of a trial or by variables.

None of them sets a variable that chooses devices, or one of another vendor.
"""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.collectors.contract import Collector, CollectorError, Context, Preparation, Summary, Value

#: Kernels of a record, those first that take most time.
_KERNELS = 100


class Rocprof(Collector):
    """AMD's ``rocprofv3`` in front of each trial: the time of each kernel on the device, per process."""

    excludes = frozenset({"nsys", "profile"})  # two profilers cannot intercept the same queues

    def prepare(self, context: Context) -> Preparation:
        tool = _tool("rocprofv3", "it comes with ROCm 6.2 and later, in /opt/rocm/bin", context)
        output = ("--output-format", "csv", "-d", str(context.folder), "-o", "process_%pid%")
        return Preparation(prefix=(tool, "--kernel-trace", "--stats", *output, "--"))

    def summarize(self, folder: Path, ranks: Sequence[int]) -> Summary:
        files = _files(folder)
        calls: dict[str, list[float]] = {}
        for path in files:
            if path.name.endswith("kernel_stats.csv"):
                for name, number, milliseconds in _kernels(path):
                    found = calls.setdefault(name, [0, 0.0])
                    found[0] += number
                    found[1] += milliseconds
        if not calls:
            return Summary("rocprofv3 has seen no kernel", {}, files)
        ordered = sorted(calls.items(), key=lambda item: -item[1][1])
        total = sum(milliseconds for _, (_, milliseconds) in ordered) or 1.0
        names = ", ".join(f"{name} {each[1] / total:.0%}" for name, each in ordered[:3])
        data: dict[str, Any] = {name: {"calls": each[0], "ms": each[1]} for name, each in ordered[:_KERNELS]}
        return Summary(f"most time on the device: {names}", {"kernels": data}, files)


class Nsys(Collector):
    """NVIDIA's ``nsys profile`` in front of each trial: a report for the viewer of Nsight Systems."""

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {"trace": ("cuda,nvtx,osrt", "what nsys traces")}
    excludes = frozenset({"rocprof", "profile"})

    def prepare(self, context: Context) -> Preparation:
        tool = _tool("nsys", "it comes with NVIDIA's CUDA toolkit and with Nsight Systems", context)
        asked = (f"--trace={self.given['trace']}", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true")
        return Preparation(prefix=(tool, "profile", *asked, "-o", str(context.folder / "profile")))

    def summarize(self, folder: Path, ranks: Sequence[int]) -> Summary:
        files = _files(folder)
        reports = [path.name for path in files if path.suffix in (".nsys-rep", ".qdrep")]
        return Summary("" if reports else "nsys has written no report", {}, files)


class AmdLog(Collector):
    """The log of AMD's HIP runtime: each call, kernel and copy of each process."""

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {"level": (3, "AMD_LOG_LEVEL, 1 (errors) to 5 (all)")}

    def __init__(self, given: Mapping[str, Value]) -> None:
        super().__init__(given)
        if not 1 <= int(self.given["level"]) <= 5:
            raise CollectorError(f"--aorta-collect amd_log:level={self.given['level']}: expected 1 to 5")

    def prepare(self, context: Context) -> Preparation:
        log = str(context.folder / "hip.log")  # the runtime appends the number of the process
        return Preparation({"AMD_LOG_LEVEL": str(self.given["level"]), "AMD_LOG_LEVEL_FILE": log})

    def summarize(self, folder: Path, ranks: Sequence[int]) -> Summary:
        files = _files(folder)
        errors = [line for path in files for line in _lines(path) if line.startswith(":1:")]
        if not files:
            return Summary("no process has used AMD's HIP runtime")
        return Summary(
            f"{len(errors)} errors, first: {errors[0][:200]}" if errors else "", {"errors": errors[:20]}, files
        )


def _tool(name: str, where: str, context: Context) -> str:
    found = shutil.which(name, path=context.environ.get("PATH"))
    if found is None:
        raise CollectorError(f"{name} is not on the trial's PATH; {where}")
    return found


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]


def _lines(path: Path) -> list[str]:
    with path.open(errors="replace") as file:
        return [line.rstrip() for line in file]


def _kernels(path: Path) -> list[tuple[str, int, float]]:
    """Name, calls and milliseconds; lines that are cut off, or whose numbers are none, are left out."""
    found = []
    with path.open(newline="", errors="replace") as file:
        for row in csv.DictReader(file):
            try:
                calls, milliseconds = int(row["Calls"]), float(row["TotalDurationNs"]) / 1e6
            except (KeyError, TypeError, ValueError):
                continue
            if math.isfinite(milliseconds) and milliseconds >= 0:
                found.append((row["Name"], calls, milliseconds))
    return found
