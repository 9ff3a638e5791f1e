"""Metrics that training loops write by themselves: on their progress bars, in lines of JSON, and for TensorBoard."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What lines say, by who writes them. ``pairs`` are names with values; the other groups as in the pattern of a metric.
LINES: Mapping[str, tuple[re.Pattern[str], ...]] = {
    name: tuple(map(re.compile, patterns))
    for name, patterns in {
        "tqdm": [r"(?P<step>\d+)/(?P<total>\d+) \[(?P<pairs>[^\]]*)"],
        "hf": [r"%\|[^|]*\| *(?P<step>\d+)/(?P<total>\d+) \[", r"(?P<pairs>\{['\"]\w+['\"]: .*\})"],
        "lightning": [r"Epoch \d+(?:/\d+)?\b.*?(?P<step>\d+)/(?P<total>\d+)\s(?P<pairs>.*)"],
        "nanogpt": [
            r"iter (?P<step>\d+): loss (?P<loss>[^,\s]+), time (?P<step_ms>[\d.]+)ms",
            r"step \d+: train loss (?P<train_loss>[^,\s]+), val loss (?P<val_loss>[^,\s]+)",
        ],
    }.items()
}

#: What files say.
FILES = ("jsonl", "tensorboard")

PAIR = re.compile(r"['\"]?(?P<name>[A-Za-z_][\w/.-]*)['\"]?\s*[=:]\s*['\"]?(?P<value>[^\s,;|}\]'\"]+)")

#: Names of the number of a step in lines of JSON.
_STEPS = ("step", "global_step", "_step", "iteration", "iter")


def checked_source(text: object) -> str:
    """Where metrics come from.

    Raises:
        ValueError: what would be valid.
    """
    kind, _, path = text.partition(":") if isinstance(text, str) else ("", "", "")
    if text in LINES or (kind in FILES and path):
        return str(text)
    raise ValueError(f"{', '.join(LINES)}, jsonl:PATH or tensorboard:DIR")


@dataclass(frozen=True)
class Row:
    """What was written of one step, ``at`` a time in seconds, where that is known."""

    values: dict[str, float]
    step: int | None = None
    at: float | None = None


@dataclass
class FollowedFiles:
    """A file, or the files below a folder, of which only what is written from now on counts."""

    kind: str
    path: Path
    _before: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._before = {file: file.stat().st_size for file in self._found()}

    def _found(self) -> list[Path]:
        if self.kind == "jsonl":
            return [self.path] if self.path.is_file() else []
        return sorted(file for file in self.path.rglob("*tfevents*") if file.is_file())

    def rows(self) -> Iterator[Row]:
        read = _json_rows if self.kind == "jsonl" else _event_rows
        for file in self._found():
            content, before = file.read_bytes(), self._before.get(file, 0)
            yield from read(content[before:] if len(content) >= before else content)


def _json_rows(content: bytes) -> Iterator[Row]:
    for line in content.splitlines():
        try:
            read = json.loads(line)
        except ValueError:
            continue  # the last line of a program that was ended
        if isinstance(read, dict):
            step = next((read[name] for name in _STEPS if isinstance(read.get(name), int)), None)
            yield Row({name: value for name, value in _flat("", read) if name not in _STEPS}, step)


def _flat(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{name}/{key}" if name else key, each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


# A file of TensorBoard has records of 8 bytes with a length, 4 of a checksum, an Event, and 4 of a checksum. Numbers
# of fields are those of event.proto, summary.proto and tensor.proto in tensorboard/compat/proto.


def _event_rows(content: bytes) -> Iterator[Row]:
    at = 0
    while at + 12 <= len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        event = content[at + 12 : at + 12 + size]
        at += size + 16
        if len(event) < size:
            return  # the last record of a program that was ended
        fields: dict[int, Any] = dict(_fields(event))
        summaries = [value for number, value in _fields(fields.get(5, b"")) if number == 1]
        values = dict(filter(None, map(_scalar, summaries)))
        if values:
            yield Row(values, fields.get(2, 0), struct.unpack("<d", fields[1])[0] if 1 in fields else None)


def _scalar(summary: bytes) -> tuple[str, float] | None:
    fields: dict[int, Any] = dict(_fields(summary))
    name, tensor = fields.get(1, b"").decode(errors="replace"), dict(_fields(fields.get(8, b"")))
    for form, raw in (("<f", fields.get(2)), ("<f", tensor.get(5)), ("<d", tensor.get(6)), ("<f", tensor.get(4))):
        if isinstance(raw, bytes) and len(raw) == struct.calcsize(form):
            return name, struct.unpack(form, raw)[0]
    return None


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message of Protocol Buffers: whole numbers, else bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        else:
            size = 8 if kind == 1 else 4
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            break
    return value, at
