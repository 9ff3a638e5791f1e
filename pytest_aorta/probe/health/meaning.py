"""What events and counters mean: names in plain words, who has caused them, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

#: A trial is throttled if its clocks were held back in this share of the readings.
LEAST_SHARE = 0.1

#: Reasons for lower clocks that a trial on its own does not change, with words for a sentence.
THROTTLES = {
    "power cap": "ran under a power cap",
    "heat": "were slowed down by heat",
    "power brake": "were slowed down by the power brake",
    "hardware slowdown": "were slowed down by the hardware",
    "current limit": "ran under a limit of current",
    "sync boost": "were slowed down by another GPU",
    "set clocks": "ran at clocks that someone has set",
    "board limit": "ran under a limit of the board",
    "processor hot": "were slowed down by heat",
    "CPU heat": "ran while the CPU was slowed down by heat",
}


class Meaning(NamedTuple):
    """``cause``: ``hardware``, ``application``, ``driver`` or ``follows`` (from something else)."""

    cause: str
    name: str
    action: str


class HardwareEvent(NamedTuple):
    """``place``: ``GPU 2`` or ``host``. ``name``: ``Xid 94 (contained ECC error)``; ``what`` has an article."""

    place: str
    name: str
    what: str
    cause: str
    action: str


@lru_cache(maxsize=1)
def meanings() -> Mapping[tuple[str, str], Meaning]:
    """By kind and code: ``("Xid", "94")``, ``("RAS", "umc")``, ``("event", "EDAC")``, ``("counter", ...)``."""
    lines = Path(__file__).with_name("events.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return {(kind, code): Meaning(cause, name, action) for kind, code, cause, name, action in rows}


def xid_name(code: int | str) -> str:
    """``Xid 94 (contained ECC error)``; ``Xid 4711`` for one that the table does not have."""
    known = meanings().get(("Xid", str(code)))
    return f"Xid {code} ({known.name})" if known else f"Xid {code}"


_RAS = re.compile(r"ras (\w+) uncorrected")


def hardware_events(health: Mapping[str, Any]) -> list[HardwareEvent]:
    """Errors in the ``health`` of a record that were not corrected: those of hardware first, each once at its place."""
    found: dict[tuple[str, str], HardwareEvent] = {}
    for place, part in [*(health.get("devices") or {}).items(), ("host", health.get("host") or {})]:
        codes = [
            ("event", each["kind"]) if each.get("code") is None else ("Xid", str(each["code"]))
            for each in part.get("events") or ()
        ]
        for counter in part.get("counters") or ():
            block = _RAS.fullmatch(counter)
            codes.append(("RAS", block[1]) if block else ("counter", counter))
        for kind, code in codes:
            default = None if kind in ("event", "counter") else Meaning("hardware", code, "look at the kernel log")
            if known := meanings().get((kind, code), default):
                name = {"Xid": xid_name(code), "RAS": f"RAS error ({known.name})"}.get(kind, known.name)
                what = f"{'an' if name[0] in 'aeiouX' else 'a'} {name}"
                found.setdefault((place, name), HardwareEvent(place, name, what, known.cause, known.action))
    order = ("hardware", "driver", "application", "follows")
    return sorted(found.values(), key=lambda each: order.index(each.cause))


def after(health: Mapping[str, Any], *, with_place: bool = True) -> str:
    """``after Xid 94 (contained ECC error) on GPU 2``: the gravest event of a trial that has failed; empty for none."""
    events = [each for each in hardware_events(health) if each.cause != "follows"]
    if not events:
        return ""
    where = f" on {'the host' if events[0].place == 'host' else events[0].place}" if with_place else ""
    return f"after {events[0].name}{where}"


def throttled(health: Mapping[str, Any]) -> frozenset[str]:
    """Why the clocks of a trial's devices, or of the host's CPU, were held back."""
    reasons = {
        reason
        for part in (health.get("devices") or {}).values()
        for reason, share in (part.get("throttled") or {}).items()
        if share >= LEAST_SHARE
    }
    if ((health.get("host") or {}).get("counters") or {}).get("cpu_throttled"):
        reasons.add("CPU heat")
    return frozenset(reasons)


def gauge(health: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Least and greatest value of a gauge over a trial's devices, or of the host if it is one of the host's."""
    parts = [*(health.get("devices") or {}).values(), *filter(None, [health.get("host")])]
    values = [part["gauges"][name] for part in parts if name in (part.get("gauges") or {})]
    return (min(low for low, _ in values), max(high for _, high in values)) if values else None
