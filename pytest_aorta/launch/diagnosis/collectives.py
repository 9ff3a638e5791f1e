"""Which collectives the ranks have entered, and when, as torch's flight recorders say.

Shows where ranks disagree, who waits for whom, and who is slower.

``torch.distributed.flight_recorder`` does the same by the same rules (``Op.match``), to which the tests compare this.
It is not called: this code also runs where torch must not be imported, and handles recorders that know no members
(gloo), which torch's refuses; and torch's takes the lowest rank for right.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pytest_aorta.launch.diagnosis.evidence import Collective, rank_names

#: Number of collectives of a rank that are looked at.
_RECENT = 256


def read_collectives(trace: Mapping[str, Any]) -> list[Collective]:
    """The last collectives in a dump of a flight recorder, in the order in which the rank entered them."""
    entries = [entry for entry in trace.get("entries") or () if not entry.get("is_p2p")]
    entries.sort(key=lambda entry: int(entry.get("record_id", 0)))
    groups = trace.get("pg_config") or {}
    collectives = []
    for entry in entries[-_RECENT:]:
        name, group = (str(each) for each in entry.get("process_group") or ("", ""))
        listed = str(groups.get(name, {}).get("ranks", "")).strip("[] ").split(",")
        members = [int(each) for each in listed if each.strip()]
        if group != "default_pg":
            group = f"{group} {name}" if group not in ("", "undefined") else f"group {name}"
            # Groups from one split have the same name.
            group += f" from rank {members[0]}" if members else ""
        operation = str(entry.get("profiling_name"))
        number = int(entry.get("collective_seq_id", 0))
        size, at = len(members) or None, entry.get("time_created_ns")
        collectives.append(Collective(operation, number, group, of=_tensors(entry), size=size, at=at))
    return collectives


def _tensors(entry: Mapping[str, Any]) -> str:
    """Tensors, which all ranks must share: ``Float[4]``, or ``Float[4] to Float[8]`` if input and output differ."""
    operation = str(entry.get("profiling_name")).rpartition(":")[2]
    if operation.startswith("all_to_all") or operation.endswith(("coalesced", "_v")):
        return ""
    shown = []
    for side, of_one_rank in (("input", "scatter"), ("output", "gather")):
        types, sizes = entry.get(f"{side}_dtypes") or (), entry.get(f"{side}_sizes") or ()
        text = " ".join(f"{dtype}{size}" for dtype, size in zip(types, sizes, strict=False))
        if text and text not in shown and operation != of_one_rank:
            shown.append(text)
    return " to ".join(shown)


@dataclass(frozen=True)
class Mismatch:
    """The first collective of a group that its ranks have not entered alike.

    ``text``: ``collective 7 differs: rank 1: gloo:broadcast of Float[4]; ranks 0,2: gloo:all_reduce of Float[4]``;
    ``odd``: the rank that differs from more than half of the group, if there is one and only it does.
    """

    text: str
    ranks: frozenset[int]
    odd: int | None


def find_mismatch(
    entered: Mapping[int, Sequence[Collective]],
    world_size: int,
    rejecting: Mapping[int, tuple[int, int]] = MappingProxyType({}),
) -> Mismatch | None:
    """Compare, group by group, the collectives that ranks have entered under the same number.

    ``rejecting``: as for ``find_rejecting``; if the others have entered two different collectives, the sizes say which
    of the two such a rank has entered.
    """
    by_number: dict[tuple[str, int], dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    for rank, collectives in entered.items():
        for each in collectives:
            by_number[each.group, each.number][rank].append(each)

    # Of several groups, take the first mismatch: later ones may follow from it.
    def first_position(item: tuple[object, Mapping[int, Sequence[Collective]]]) -> int:
        return min(entered[rank].index(those[0]) for rank, those in item[1].items())

    for (group, number), by_rank in sorted(by_number.items(), key=first_position):
        ranks_of: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for rank, those in sorted(by_rank.items()):
            ranks_of[tuple(f"{each.name}{each.of and f' of {each.of}'}" for each in those)].append(rank)
        if len(ranks_of) > 1:
            order = sorted(ranks_of.items(), key=lambda item: (len(item[1]), item[1]))
            said = "; ".join(f"{rank_names(ranks)}: {' + '.join(what)}" for what, ranks in order)
            # The majority must hold whatever the ranks have entered about which nothing is known.
            size = max(len(by_rank), *(each.size or world_size for those in by_rank.values() for each in those))
            few, most = order[0][1], order[-1][1]
            tensors = [by_rank[ranks[0]][0].of for ranks in (few, most)]
            for rank, (came, expected) in rejecting.items():
                if rank not in by_rank and len(order) == 2 and (of := _expecting(came, expected, tensors)) is not None:
                    (few, most)[of].append(rank)
                    said += f"; rank {rank}: {came} bytes came where it expected {expected}"
            few, most = sorted((few, most), key=len)
            odd = few[0] if len(order) == 2 and len(few) == 1 and 2 * len(most) > size else None
            name = f"collective {number}" + ("" if group == "default_pg" else f" of {group}")
            return Mismatch(f"{name} differs: {said}", frozenset(by_rank), odd)
    return None


#: Bytes of an element, by the flight recorder's names of types.
_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}
_TENSOR = re.compile(r"([A-Za-z]\w*)\[([\d, ]*)\]")


def _size_of(tensors: str) -> int | None:
    """Bytes of ``Float[4, 2]``, or of several, without what follows ``to``."""
    parts = _TENSOR.findall(tensors.partition(" to ")[0])
    if not parts or any(dtype not in _BYTES for dtype, _ in parts):
        return None
    return sum(
        _BYTES[dtype] * math.prod(int(each) for each in shape.split(",") if each.strip()) for dtype, shape in parts
    )


def _expecting(came: int, expected: int, tensors: Sequence[str]) -> int | None:
    """Which of two collectives a rank has entered if it got more bytes than it expected, namely those of the other one.

    Backends send in parts, so that only the proportion of sizes can be compared.
    """
    sizes = [_size_of(each) for each in tensors]
    for own, other in ((0, 1), (1, 0)):
        mine, theirs = sizes[own], sizes[other]
        if mine and theirs and mine != theirs and math.isclose(came / expected, theirs / mine, rel_tol=0.01):
            return own
    return None


def find_rejecting(
    entered: Mapping[int, Sequence[Collective]], rejecting: Mapping[int, tuple[int, int]], world_size: int
) -> Mismatch | None:
    """The rank that got another size than it expected, if more than half of all ranks have entered the same collective.

    Args:
        entered: collectives of each rank; none of a rank that was aborted.
        rejecting: for each such rank, the bytes that came and the bytes that it expected.
    """
    last = {rank: those[-1] for rank, those in entered.items() if those and rank not in rejecting}
    if len(rejecting) != 1 or 2 * len(last) <= world_size:
        return None
    first, *others = last.values()
    # Without tensors that are equal in all ranks (all_to_all), what came says nothing of who was wrong.
    if not first.of or any(
        (each.group, each.number, each.name, each.of) != (first.group, first.number, first.name, first.of)
        for each in others
    ):
        return None
    ((odd, (came, expected)),) = rejecting.items()
    name = f"collective {first.number}" + ("" if first.group == "default_pg" else f" of {first.group}")
    what = f"{first.name}{first.of and f' of {first.of}'}"
    said = f"rank {odd}: {came} bytes came where it expected {expected}; {rank_names(last)}: {what}"
    return Mismatch(f"{name} differs: {said}", frozenset({odd, *last}), odd)


def positions(entered: Mapping[int, Sequence[Collective]]) -> tuple[set[int], set[int]]:
    """Ranks that are behind others and wait for none, and the remaining ranks, which are not missing.

    A rank without a group in common with another rank is in neither set.
    """
    last: dict[str, dict[int, int]] = defaultdict(dict)
    for rank, collectives in entered.items():
        for each in collectives:
            last[each.group][rank] = each.number
    shared = [numbers for numbers in last.values() if len(numbers) > 1]
    waits: dict[int, set[int]] = {rank: set() for numbers in shared for rank in numbers}
    for numbers in shared:
        for rank, number in numbers.items():
            waits[rank] |= {other for other, theirs in numbers.items() if theirs < number}
    # The last collective of a rank may be the first of its group; then the rank waits for others about which nothing is
    # known.
    alone = {rank for rank, those in entered.items() if those and len(last[those[-1].group]) == 1 != those[-1].size}
    behind = set[int]().union(*waits.values()) - {rank for rank, those in waits.items() if those} - alone
    return behind, waits.keys() - behind


#: Fewer collectives than this say nothing; so many at the beginning are a warm-up.
_FEWEST_COMMON, _WARM_UP = 8, 2


def busy_ms(entered: Mapping[int, Sequence[Collective]]) -> dict[int, float]:
    """Average time, in milliseconds, that each rank computes before it enters a collective of all ranks.

    A collective begins when the last rank enters it; from then on, each rank computes until it enters the next one. The
    others wait while one rank computes longer, so the times of steps are equal in all ranks. Empty if too few
    collectives of all ranks are known. The ranks must be on one host, because their clocks must agree.
    """
    times: dict[str, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for rank, entries in entered.items():
        for each in entries:
            if each.at is not None:
                times[each.group][each.number][rank] = each.at
    of_all = [
        [by_rank for _, by_rank in sorted(numbers.items()) if by_rank.keys() == entered.keys()]
        for numbers in times.values()
    ]
    longest = max(of_all, key=len, default=[])[_WARM_UP:]
    if len(entered) < 2 or len(longest) < _FEWEST_COMMON:
        return {}
    spans: dict[int, list[float]] = {rank: [] for rank in entered}
    for before, after in itertools.pairwise(longest):
        begin = max(before.values())
        for rank, at in after.items():
            spans[rank].append(max(0, at - begin) / 1e6)
    return {rank: statistics.fmean(values) for rank, values in spans.items()}
