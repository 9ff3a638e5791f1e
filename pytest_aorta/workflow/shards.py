"""Which part of a plan is run where several machines share it: the same answer on all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from pytest_aorta.settings import RequestError
from pytest_aorta.workspace.atomic import write_json

#: Of everything, where no duration is known.
_SECONDS = 1.0

_NUMBERED = re.compile(r"(?P<cell>.*\[.*)-\d+\]", re.DOTALL)


class Durations:
    """How long the trials of cells are expected to take: ``seconds`` of one trial, by ``cell_of_item``."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self.seconds = dict(seconds or {})
        self._known = {name: max(1, round(each * 1000)) for name, each in self.seconds.items()}
        known = self._known.values()
        self._default = round(sum(known) / len(known)) if known else round(_SECONDS * 1000)

    def of(self, name: str) -> int:
        """Of an item, in milliseconds; the mean of those that are known where it is not known."""
        return self._known.get(cell_of_item(name), self._default)


def cell_of_item(name: str) -> str:
    found = _NUMBERED.fullmatch(name)
    return f"{found['cell']}]" if found else name


def shards_of(names: Sequence[str], keys: Sequence[Sequence[Hashable]], count: int, durations: Durations) -> list[int]:
    """The shard, from 0, of each item as they are collected; items with a key in common have the same one."""
    groups = joined(keys)
    cells = [tuple(cell_of_item(names[index]) for index in group) for group in groups]
    milliseconds = [sum(durations.of(names[index]) for index in group) for group in groups]
    found = [0] * len(names)
    for group, shard in zip(groups, divide(list(zip(cells, milliseconds, strict=True)), count), strict=True):
        for index in group:
            found[index] = shard
    return found


def joined(keys: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Indices of what has a key in common, directly or by others; each group in order, and groups by their first."""
    group_of: dict[Hashable, list[int]] = {}
    groups: list[list[int]] = []
    for index, own in enumerate(keys):
        found = [index]
        for other in {id(group_of[key]): group_of[key] for key in own if key in group_of}.values():
            found = [*other, *found]
            other.clear()
        groups.append(found)
        for each in found:
            group_of.update(dict.fromkeys(keys[each], found))
    return sorted(sorted(group) for group in groups if group)


def divide(parts: Sequence[tuple[Hashable, int]], count: int) -> list[int]:
    """The shard, from 0, of each part: its cell, and the milliseconds that it is expected to take.

    Of each cell, all shards get equally many, or one more: a cell that ran on one machine alone could not be told from
    that machine. What is left of a cell goes to the shards with the least to do, cells with long trials first. So two
    shards differ by at most the longest part. What decides is the order of the parts and their durations, nothing else.
    """
    cells: dict[tuple[Hashable, int], list[int]] = {}
    for index, part in enumerate(parts):
        cells.setdefault(part, []).append(index)
    loads = [0] * count
    found = [0] * len(parts)
    for (_, milliseconds), indices in sorted(cells.items(), key=lambda cell: -cell[0][1]):  # stable: else as planned
        order = sorted(range(count), key=lambda shard: loads[shard])
        for place, index in enumerate(indices):
            found[index] = order[place % count]
            loads[order[place % count]] += milliseconds
    return found


def read_durations(file: Path) -> Durations:
    """The file that ``write_durations`` has written; raises ``RequestError`` where it cannot be read."""
    expected = "a file that pytest-aorta ci-matrix --durations has written"
    try:
        content = json.loads(file.read_bytes())
        seconds = content["seconds"]
        if content["version"] != 1 or not all(0 <= float(each) < 1e9 for each in seconds.values()):
            raise ValueError
        return Durations({str(name): float(each) for name, each in seconds.items()})
    except OSError as error:
        raise RequestError(f"{file}: {error.strerror}; expected {expected}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RequestError(f"{file} has no durations; expected {expected}") from None


def write_durations(file: Path, seconds: Mapping[str, float]) -> None:
    """Write durations of trials, by ``cell_of_item``; raises ``OSError``."""
    write_json(file, {"version": 1, "seconds": {name: round(each, 3) for name, each in sorted(seconds.items())}})
