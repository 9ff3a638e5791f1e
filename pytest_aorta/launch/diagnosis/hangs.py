"""Where the ranks of a trial were that had to be ended: which one is missing, and what the others waited in."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pytest_aorta.launch.diagnosis.flight_recorder import LastCollective, last_collective
from pytest_aorta.launch.diagnosis.stacks import Whereabouts, read_dump, whereabouts
from pytest_aorta.trials.events import RankData


@dataclass(frozen=True)
class HangReport:
    """What the stacks of a trial's ranks say together.

    Attributes:
        text: ``rank 1 is missing: run() at hang.py line 9; rank 0: all_reduce in run() at hang.py line 12``.
        rank: the one that the others wait for in a collective, or the only one that hung; ``None`` when that is not
            known.
    """

    text: str
    rank: int | None


def read_collectives(folder: Path) -> dict[int, LastCollective]:
    """The last collective of every rank whose flight recorder has answered, from an attempt's ``folder``."""
    found = {}
    for path in folder.glob("rank_*.collectives.json"):
        rank = path.name.partition("_")[2].partition(".")[0]
        with contextlib.suppress(OSError, ValueError):
            last = last_collective(json.loads(path.read_text()))
            if last is not None and rank.isdecimal():
                found[int(rank)] = last
    return found


def report_hang(
    records: list[RankData],
    stacks: Callable[[int], Path | None],
    source: str | None,
    collectives: Mapping[int, LastCollective] = MappingProxyType({}),
) -> HangReport:
    """Find out who waited for whom, and write into the records of the ranks that hung where each of them was.

    A rank that waits in a collective for another one becomes ``collateral``.

    Args:
        records: plain ``RankRecord`` of every rank.
        stacks: the dump of a rank.
        source: the workload's file.
        collectives: the last one that each rank has entered, as far as known. Where no stack shows a collective, as
            when it waits in C++ only, the ranks that have entered fewer are missing.
    """
    found: dict[int, Whereabouts | None] = {}
    for record in records:
        failure = record["failure"]
        if failure is not None and failure["kind"] in ("timeout", "stall"):
            path = stacks(record["rank"])
            where = None if path is None else whereabouts(read_dump(path), source)
            found[record["rank"]] = where
            if where is not None:
                failure["message"] += f"; {where.text}"
    waiting = {rank for rank, where in found.items() if where is not None and where.collective is not None}
    missing = _behind(collectives)
    if waiting:
        missing = [record["rank"] for record in records if record["rank"] not in waiting]
    texts = []
    for record in sorted(records, key=lambda record: (record["rank"] not in missing, record["rank"])):
        rank = record["rank"]
        if missing and (rank in waiting or (not waiting and rank in collectives and rank not in missing)):
            record["collateral"] = True
        where = found.get(rank)
        text = where.text if where is not None else _end_of(record)
        if rank in collectives:
            record["collective"] = collectives[rank].text
            text += f" (last: {collectives[rank].text})"
        texts.append(f"rank {rank}{' is missing' if rank in missing else ''}: {text}")
    blamed = missing or (list(found) if len(found) == 1 else [])
    return HangReport("; ".join(texts), blamed[0] if blamed else None)


def _behind(collectives: Mapping[int, LastCollective]) -> list[int]:
    """Ranks that have entered fewer collectives than others of the same process group."""
    if len({last.group for last in collectives.values()}) != 1:
        return []
    most = max(last.number for last in collectives.values())
    return sorted(rank for rank, last in collectives.items() if last.number < most)


def _end_of(record: RankData) -> str:
    """How a rank ended that has told no stack."""
    failure = record["failure"]
    if failure is None:
        return f"exited {record['exit_code'] or 0}"
    if failure["kind"] in ("timeout", "stall"):
        return "it gave no stack"
    if failure["kind"] == "exception":
        return f"raised {failure['type']}"
    return str(failure["message"])
