"""Division of a plan among machines; each machine computes the same division."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

_NUMBERED = re.compile(r"(?P<cell>.*\[.*)-\d+\]", re.DOTALL)


def cell_of_item(name: str) -> str:
    match = _NUMBERED.fullmatch(name)
    return f"{match['cell']}]" if match else name


def shards_of(names: Sequence[str], keys: Sequence[Sequence[Hashable]], count: int) -> list[int]:
    """The shard, from 0, of each item as they are collected; items with a key in common have the same one."""
    groups = joined(keys)
    cells = [tuple(cell_of_item(names[index]) for index in group) for group in groups]
    shards = [0] * len(names)
    for group, shard in zip(groups, divide(list(zip(cells, map(len, groups), strict=True)), count), strict=True):
        for index in group:
            shards[index] = shard
    return shards


def joined(keys: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Groups of indices that share keys, directly or through others; sorted by their first index."""
    group_of: dict[Hashable, list[int]] = {}
    groups: list[list[int]] = []
    for index, own in enumerate(keys):
        together = [index]
        for other in {id(group_of[key]): group_of[key] for key in own if key in group_of}.values():
            together = [*other, *together]
            other.clear()
        groups.append(together)
        for each in together:
            group_of.update(dict.fromkeys(keys[each], together))
    return sorted(sorted(group) for group in groups if group)


def divide(parts: Sequence[tuple[Hashable, int]], count: int) -> list[int]:
    """The shard, from 0, of each part; a part is a cell and a number of items.

    Of each cell, all shards get equally many, or one more: a cell that ran on one machine alone could not be told from
    that machine. What is left of a cell goes to the shards with the least to do, large parts first. So two shards
    differ by at most the largest part. What decides is the order of the parts and their sizes, nothing else.
    """
    cells: dict[tuple[Hashable, int], list[int]] = {}
    for index, part in enumerate(parts):
        cells.setdefault(part, []).append(index)
    loads = [0] * count
    shards = [0] * len(parts)
    for (_, size), indices in sorted(cells.items(), key=lambda cell: -cell[0][1]):  # stable: else as planned
        order = sorted(range(count), key=lambda shard: loads[shard])
        for place, index in enumerate(indices):
            shards[index] = order[place % count]
            loads[order[place % count]] += size
    return shards
