"""What is read of the health of a host and its devices, and what changes between two readings.

A *reading* is one moment. A *change* is what a trial's record keeps: differences of counters, least and greatest
values of gauges, and events, from the reading before the trial to the one after it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

#: Bytes of a change as JSON, at most.
MOST_BYTES = 1000

#: Beginning of counters of throttling, in units of the vendor; what follows is the reason.
THROTTLED = "throttled "

#: Most events of a device or a host, and most characters of what an event says.
_MOST_EVENTS, _MOST_TEXT = 4, 80


class _Part(BaseModel):
    """Leaves out what is empty: a record has one of each trial."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_serializer(mode="wrap")  # no type of the result: the schema would be that type's
    def _short(self, serialize: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        fields = type(self).model_fields
        given: dict[str, Any] = serialize(self)
        return {name: it for name, it in given.items() if it not in (None, [], {}, "") or fields[name].is_required()}


class HealthEvent(_Part):
    """Something that the hardware or the kernel has reported.

    ``at``: seconds since the epoch. ``kind``: ``Xid``, ``RAS``, ``machine check``, ``OOM kill`` or ``segfault``.
    ``code``: number of an Xid. ``device``: PCI address, ``None`` for the host. ``text``: what the line says.
    """

    at: float
    kind: str
    code: int | None = None
    device: str | None = None
    text: str = ""


class PartReading(_Part):
    """One moment of a host or a device.

    ``name``: ``host``, ``GPU 0`` as the host numbers it, ``NVIDIA GPU 0`` where there are two vendors. ``facts``: what
    rarely changes: ``pci``, ``vendor``, ``model``, ``ecc`` (on or off). ``counters`` only grow, until a reset.
    ``gauges`` are values of the moment, with their unit at the end of the name. ``throttled``: why the clocks
    are held back now.
    ``unreadable``: what could not be read, and why; under ``all`` if nothing could.
    """

    name: str
    facts: dict[str, str] = Field(default_factory=dict)
    counters: dict[str, int] = Field(default_factory=dict)
    gauges: dict[str, float] = Field(default_factory=dict)
    throttled: list[str] = Field(default_factory=list)
    unreadable: dict[str, str] = Field(default_factory=dict)


class HealthReading(_Part):
    """One moment of this host and its devices; ``at`` in seconds since the epoch.

    ``events``: what was reported since the reading before; of a first reading, what the kernel log still holds.
    """

    at: float
    host: PartReading
    devices: list[PartReading] = Field(default_factory=list)
    events: list[HealthEvent] = Field(default_factory=list)


class PartChange(_Part):
    """A host or a device over a time.

    ``counters``: by how much they have grown; those that have not are left out. ``gauges``: least and greatest value.
    ``throttled``: the share of readings in which clocks were held back, by reason. ``reset``: counters that are smaller
    than before, so a driver or a device was started anew meanwhile; they have no difference.
    """

    facts: dict[str, str] = Field(default_factory=dict)
    counters: dict[str, int] = Field(default_factory=dict)
    gauges: dict[str, tuple[float, float]] = Field(default_factory=dict)
    throttled: dict[str, float] = Field(default_factory=dict)
    events: list[HealthEvent] = Field(default_factory=list)
    reset: list[str] = Field(default_factory=list)
    unreadable: dict[str, str] = Field(default_factory=dict)


class HealthChange(_Part):
    """This host and its devices over a time, by name; ``unreadable``: why there is nothing at all.

    ``readings``: how many there were, the first and the last included. ``left_out``: how many devices, or gauges of
    devices, are not here because the record would be too long.
    """

    readings: int = 0
    host: PartChange | None = None
    devices: dict[str, PartChange] = Field(default_factory=dict)
    left_out: int | None = None
    unreadable: str | None = None


class Change:
    """Takes in readings one by one, in constant memory; ``result`` says what has changed since the first one."""

    def __init__(self, *readings: HealthReading) -> None:
        self._readings = 0
        self._parts = defaultdict[str, _Folded](_Folded)
        self._events: list[HealthEvent] = []
        for reading in readings:
            self.add(reading)

    def add(self, reading: HealthReading) -> None:
        if self._readings:  # else they have come before
            self._events += reading.events[: 100 - len(self._events)]
        self._readings += 1
        there = [reading.host, *reading.devices]
        for part in there:
            self._parts[part.name].add(part)
        for name in self._parts.keys() - {part.name for part in there}:
            self._parts[name].unreadable["all"] = "it is not there any more"

    def result(self, devices: Iterable[int] | None = None) -> HealthChange:
        """The change; of ``devices`` by their numbers, or of all."""
        if not self._readings:
            return HealthChange(unreadable="nothing was read yet")
        known = {str(each.facts.get("pci", "")): name for name, each in self._parts.items()}
        events: dict[str, list[HealthEvent]] = {}
        for event in self._events:
            events.setdefault(known.get(event.device or "?", "host"), []).append(event)
        parts = {name: each.result(events.get(name, ())) for name, each in self._parts.items()}
        host = parts.pop("host", None)
        if devices is not None:
            wanted = (" ?", *(f" {number}" for number in devices))  # a driver that never answered tells no numbers
            parts = {name: part for name, part in parts.items() if name.endswith(wanted)}
        return _fitted(HealthChange(readings=self._readings, host=host, devices=parts))


def difference(before: HealthReading, after: HealthReading) -> HealthChange:
    """What has changed from one reading to a later one, for all devices.

    A counter that is smaller than before was reset: it has no difference, and its name is in ``reset``. A device that
    is not there any more is ``unreadable``, and keeps what was known of it. Events are those of ``after`` that happened
    since ``before``.
    """
    since = [each for each in after.events if each.at >= before.at]
    return Change(before, after.model_copy(update={"events": since})).result()


class _Folded:
    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self._last: dict[str, int] = {}
        self._grown = Counter[str]()
        self._gauges: dict[str, tuple[float, float]] = {}
        self._throttled = Counter[str]()
        self._number = 0
        self._reset: dict[str, None] = {}
        self.unreadable: dict[str, str] = {}

    def add(self, part: PartReading) -> None:
        self.facts.update(part.facts)
        throttled = dict.fromkeys(part.throttled)
        for name, value in part.counters.items():
            before = self._last.get(name, value)
            if value < before:
                self._reset[name] = None
            else:
                self._grown[name] += value - before
                if name.startswith(THROTTLED) and value > before:
                    throttled[name.removeprefix(THROTTLED)] = None
            self._last[name] = value
        for name, gauge in part.gauges.items():
            low, high = self._gauges.get(name, (gauge, gauge))
            self._gauges[name] = min(low, gauge), max(high, gauge)
        self._number += "all" not in part.unreadable
        self._throttled.update(list(throttled))
        self.unreadable.update(part.unreadable)

    def result(self, events: Iterable[HealthEvent]) -> PartChange:
        kept = Counter[tuple[str, int | None]]()
        named: list[HealthEvent] = []
        for event in events:  # one of each kind before a second of any
            kept[event.kind, event.code] += 1
            if kept[event.kind, event.code] == 1 and len(named) < _MOST_EVENTS:
                named.append(event.model_copy(update={"device": None, "text": event.text[:_MOST_TEXT]}))
        grown = {name: by for name, by in self._grown.items() if by and name not in self._reset}
        readings = max(self._number, 1)
        return PartChange(
            facts=self.facts,
            counters={name: by for name, by in grown.items() if not name.startswith(THROTTLED)},
            gauges=self._gauges,
            throttled={name: round(number / readings, 3) for name, number in self._throttled.items()},
            events=named,
            reset=list(self._reset),
            unreadable=self.unreadable,
        )


def _size(change: HealthChange) -> int:
    return len(change.model_dump_json().encode())


def _fitted(change: HealthChange) -> HealthChange:
    """Leave out first gauges, then devices, of those that nothing happened to, until the record is short enough."""
    quiet = [name for name, part in change.devices.items() if not part.events and not part.counters]
    out, devices = 0, dict(change.devices)
    for shorten in (True, False):
        for name in reversed([*(each for each in devices if each not in quiet), *quiet]):
            if _size(change) <= MOST_BYTES:
                return change
            part = devices[name]
            if shorten:
                devices[name] = part.model_copy(update={"gauges": {}, "facts": {}})
            elif len(devices) > 1:
                del devices[name]
            out += not shorten or bool(part.gauges)
            change = change.model_copy(update={"devices": dict(devices), "left_out": out})
    return change
