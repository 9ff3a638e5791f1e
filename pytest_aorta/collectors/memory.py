"""``memory``: what each rank holds after each step, on the host and on the device, and whether it grows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.collectors.contract import Collector, Summary, Value

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
    in_process = Path(__file__).with_name("in_process") / "memory.py"

    def summarize(self, folder: Path, ranks: Sequence[int]) -> Summary:
        data: dict[str, Any] = {}
        leaks: list[tuple[float, str]] = []
        ended: list[str] = []
        for path in sorted(folder.rglob("*.jsonl")):
            who = path.stem.replace("_", " ")
            lines = _lines(path)
            if not lines:
                continue
            found: dict[str, Any] = {"steps": lines[-1][0]}
            for number, column in enumerate(_COLUMNS, 1):
                series = [(line[0], line[number]) for line in lines if line[number] is not None]
                if not series:
                    continue
                found[column] = {"first": series[0][1], "last": series[-1][1], "most": max(each for _, each in series)}
                if column in _NAMES and (grows := growth(series)) is not None:
                    found[column] |= {"growth": asdict(grows), "is_leak": grows.is_leak}
                    if grows.is_leak and not any(text.startswith(who) for _, text in leaks[-1:]):
                        leaks.append((grows.bytes_per_step, f"{who}: {_NAMES[column]} grows {_per_step(grows)}"))
            data[path.stem] = found
        for path in sorted(folder.rglob("*.out_of_memory.json")):
            wanted, free = (json.loads(path.read_text())[name] / _MIB for name in ("wanted", "free"))
            who = path.name.partition(".")[0].replace("_", " ")
            ended.append(f"{who}: the device had no {wanted:.0f} MiB left ({free:.0f} MiB were free)")
        if not data:
            return Summary("nothing was measured: no step was seen")
        leaks.sort(reverse=True)
        told = ended[:1] + [text for _, text in leaks[:1]]
        more = len(leaks) - 1
        if more > 0:
            told[-1] += f"; so does that of {more} more rank{'s' if more > 1 else ''}"
        return Summary("; ".join(told), data, [path for path in sorted(folder.rglob("*")) if path.is_file()])


def _per_step(grows: Growth) -> str:
    unit, name = (_MIB, "MiB") if grows.bytes_per_step >= _MIB / 10 else (1024, "KiB")
    mean, low, high = (each / unit for each in (grows.bytes_per_step, grows.low, grows.high))
    return f"by {mean:.2f} {name} a step ({low:.2f} to {high:.2f}, steps {grows.first_step} to {grows.last_step})"


def _lines(path: Path) -> list[list[Any]]:
    """All whole lines at the distance of the last ones: earlier ones were written for more steps."""
    lines = []
    for text in path.read_text(errors="replace").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:  # cut off
            continue
    stride = lines[-1][0] - lines[-2][0] if len(lines) > 2 else 1
    return [line for line in lines if line[0] % max(1, stride) == 0] or lines
