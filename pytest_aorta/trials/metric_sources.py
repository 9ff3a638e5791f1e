"""Metrics that training loops write by themselves: on their progress bars, in lines of JSON, and for TensorBoard."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_aorta.trials.detectors import MEASURED

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


#: What counts steps, the finest first, and its number, perhaps with their total.
_COUNTERS = ("global[ _]?step", "steps?", "iterations?", "iters?", "batch(?:es)?", "epochs?")
_COUNT = r"(?P<before>\b(?:{})[\"']?[^\w\n]{{0,3}})(?P<step>\d+)(?:(?P<of> ?/ ?| of )(?P<total>\d+))?"
_STEP_LINES = tuple(re.compile(_COUNT.format(word), re.IGNORECASE) for word in _COUNTERS)

#: A name with a value after it; without a sign between them, the name is one of a measured value.
_NAMED = re.compile(
    r"(?P<name>[A-Za-z_][\w/.-]*)(?P<sign>['\"]? ?[=:] ?['\"]?| +)"
    r"(?P<value>[-+]?(?:\d[\d_]*\.?\d*(?:e[-+]?\d+)?|nan|inf)(?: ?(?P<unit>ms|s)\b)?)(?![\w/])",
    re.IGNORECASE,
)

#: Metrics that are guessed of one line.
_MOST_GUESSED = 4


def guessed_options(lines: Iterable[str]) -> dict[str, str]:
    """How the steps of a program can be read from what it has printed: ``metrics-from`` or ``metric``, or neither.

    A source of this module where it says two steps at least; else an expression for the kind of line that does so most
    often, by a word that counts (``step``, ``iter``, ``epoch``) and names with values behind it.
    """
    shown = list(lines)
    for name in ("nanogpt", "hf", "lightning", "tqdm"):
        said = [line for line in shown if name != "lightning" or "it/s" in line]
        steps = {found["step"] for line in said for found in LINES[name][0].finditer(line)}
        if len(steps) > 1 and (name != "hf" or any(map(LINES[name][1].search, shown))):
            return {"metrics-from": name}
    found: dict[str, set[str]] = {}
    for line in shown:
        count = next(filter(None, (pattern.search(line) for pattern in _STEP_LINES)), None)
        if count is not None:
            found.setdefault(_expression(line, count), set()).add(count["step"])
    best = max(found, key=lambda text: (len(found[text]), len(text)), default=None)
    return {"metric": best} if best is not None and len(found[best]) > 1 else {}


def _expression(line: str, count: re.Match[str]) -> str:
    text = rf"{_spaced(count['before'])}(?P<step>\d+)"
    if count["total"]:
        text += rf"{_spaced(count['of'])}(?P<total>\d+)"
    names: set[str] = set()
    for pair in _NAMED.finditer(line, count.end()):
        name = re.sub(r"\W", "_", pair["name"])
        is_time = re.fullmatch(r"(?:step_?)?(?:time|dt|took|ms)(?:_ms)?", name, re.IGNORECASE) is not None
        if is_time and (pair["unit"] or "ms" in name.lower()):
            name = "step_ms" if pair["unit"] != "s" else "step_sec"
        elif is_time or pair["unit"] or (not pair["sign"].strip() and not MEASURED.search(pair["name"])):
            continue
        if name.lower() in (*names, "step", "total", "returncode", "seed") or len(names) == _MOST_GUESSED:
            continue
        names.add(name.lower())
        text += rf".*?\b{re.escape(pair['name'])}{_spaced(pair['sign'])}(?P<{name}>\S+)"
    return text


def _spaced(text: str) -> str:
    return re.sub(r"(?:\\ )+", " *", re.escape(text))
