"""Where the ranks of a trial hung: which one is missing, and in which collective the others waited for it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pytest_aorta.launch.diagnosis.flight_recorder import LastCollective, last_collective
from pytest_aorta.launch.diagnosis.stacks import Location, locate, read_dump
from pytest_aorta.trials.events import RankData


@dataclass(frozen=True)
class HangReport:
    """What the stacks of all ranks show together.

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


def explain_hang(
    records: list[RankData],
    stacks: Callable[[int], Path | None],
    source: str | None,
    collectives: Mapping[int, LastCollective] = MappingProxyType({}),
) -> HangReport:
    """Find the rank that the others waited for, and add to the records of the ranks that hung where each of them was.

    A rank that waits in a collective for another one becomes ``collateral``.

    Args:
        records: of every rank.
        stacks: the dump of a rank.
        source: the workload's file.
        collectives: the last one that each rank has entered, as far as known. Where no stack shows a collective, as
            when it waits in C++ only, the ranks that have entered fewer are missing.
    """
    locations = {record["rank"]: _locate(record, stacks, source) for record in records if _hung(record)}
    waiting = {rank for rank, location in locations.items() if location is not None and location.collective}
    missing = _behind(collectives)
    if waiting:
        missing = [record["rank"] for record in records if record["rank"] not in waiting]
    texts = {}
    for record in records:
        rank = record["rank"]
        location = locations.get(rank)
        texts[rank] = _end_of(record) if location is None else location.text
        if rank in collectives:
            record["collective"] = collectives[rank].text
            texts[rank] += f" (last: {collectives[rank].text})"
        if missing and rank not in missing and rank in (waiting or collectives):
            record["collateral"] = True
    parts = [f"rank {rank} is missing: {texts[rank]}" for rank in sorted(texts.keys() & missing)]
    parts += [f"rank {rank}: {texts[rank]}" for rank in sorted(texts.keys() - missing)]
    blamed = missing or (list(locations) if len(locations) == 1 else [])
    return HangReport("; ".join(parts), blamed[0] if blamed else None)


def _hung(record: RankData) -> bool:
    return record["failure"] is not None and record["failure"]["kind"] in ("timeout", "stall")


def _locate(record: RankData, stacks: Callable[[int], Path | None], source: str | None) -> Location | None:
    """Where a rank hung, as far as its stacks show; its failure says so as well."""
    path = stacks(record["rank"])
    location = None if path is None else locate(read_dump(path), source)
    if location is not None and record["failure"] is not None:
        record["failure"]["message"] += f"; {location.text}"
    return location


def _behind(collectives: Mapping[int, LastCollective]) -> list[int]:
    """Ranks that have entered fewer collectives than others of the same process group."""
    if len({last.group for last in collectives.values()}) != 1:
        return []
    most = max(last.number for last in collectives.values())
    return sorted(rank for rank, last in collectives.items() if last.number < most)


def _end_of(record: RankData) -> str:
    """How a rank ended of which there is no stack."""
    failure = record["failure"]
    if failure is None:
        return f"exited {record['exit_code'] or 0}"
    if _hung(record):
        return "it gave no stack"
    if failure["kind"] == "exception":
        return f"raised {failure['type']}"
    return str(failure["message"])
