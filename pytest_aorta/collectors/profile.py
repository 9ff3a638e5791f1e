"""``profile``: torch's profiler over a window of steps of each rank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.collectors.contract import Collector, CollectorError, Summary, Value

#: Operators with less than this part of all operators' time are left out of the record; the trace has them.
_LEAST_SHARE = 0.001


class Profile(Collector):
    """Torch's profiler over a few steps: a Chrome trace per rank, and what takes longer than in the baseline."""

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {
        "skip": (3, "steps before the window"),
        "steps": (5, "steps of the window"),
    }
    excludes = frozenset({"rocprof", "nsys"})
    in_process = Path(__file__).with_name("in_process") / "profile.py"

    def __init__(self, given: Mapping[str, Value]) -> None:
        super().__init__(given)
        for name, least in (("skip", 0), ("steps", 1)):
            if int(self.given[name]) < least:
                raise CollectorError(f"--aorta-collect profile:{name}={self.given[name]}: expected at least {least}")

    def summarize(self, folder: Path, ranks: Sequence[int]) -> Summary:
        found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.rglob("*.json"))}
        traces = sorted(folder.rglob("*.trace.json.gz"))
        profiles = {stem: each for stem, each in found.items() if each["steps"]}
        if not profiles:
            seen = max((each["seen"] for each in found.values()), default=0)
            why = (
                f"the trial made {seen}, and the window begins after {self.given['skip']}" if seen else "none was seen"
            )
            return Summary(f"no step was profiled: {why}", {}, traces)
        operators = _slowest(profiles.values())
        total = sum(operators.values())
        notes = sorted({each["note"] for each in profiles.values() if each["note"]})
        return Summary(
            "; ".join(notes),
            {
                "steps": {stem: each["steps"] for stem, each in profiles.items()},
                "step_ms": {stem: 1000 * each["wall_sec"] / each["steps"] for stem, each in profiles.items()},
                "operators": {name: ms for name, ms in operators.items() if ms >= _LEAST_SHARE * total},
            },
            traces,
        )


def _slowest(profiles: Any) -> dict[str, float]:
    """Own time of each operator, in ms per step, of the rank in which it takes longest.

    A rank that lags makes others wait, and would be hidden in a mean.
    """
    found: dict[str, float] = {}
    for profile in profiles:
        for name, (_, host_us, device_us) in profile["operators"].items():
            for key, microseconds in ((name, host_us), (f"{name} (device)", device_us)):
                if microseconds > 0:
                    found[key] = max(found.get(key, 0.0), microseconds / 1000 / profile["steps"])
    return dict(sorted(found.items(), key=lambda item: -item[1]))
