"""Who waits for whom in ``torch.distributed``, from the calls in which ranks were: chains and rings."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from pytest_aorta.launch.diagnosis.evidence import Collective, Wait, rank_names


@dataclass(frozen=True)
class WaitGraph:
    """``edges``: for each waiting rank, the ranks for which it waits.

    In a collective, a rank waits for the members of the group that are in another call or in none. ``places``: for each
    rank in a collective, the group and, if it is known, the number of the collective.
    """

    waits: Mapping[int, Wait]
    edges: Mapping[int, Set[int]]
    places: Mapping[int, tuple[object, ...]]

    @classmethod
    def of(cls, waits: Mapping[int, Wait], last: Mapping[int, Collective]) -> WaitGraph:
        """Build it from ``waits``, the call of each rank, and ``last``, the last collective of each, if known."""
        own = {rank: wait for rank, wait in waits.items() if wait.is_collective}
        places: dict[int, tuple[object, ...]] = {rank: tuple(wait.members) for rank, wait in own.items()}
        if own.keys() <= last.keys():
            places = {rank: (last[rank].group, last[rank].number) for rank in own}
        edges: dict[int, Set[int]] = {}
        for rank, wait in waits.items():
            if rank in places:
                there = {peer for peer in wait.peers if places.get(peer) == places[rank]}
            else:
                there = {peer for peer in wait.peers if peer in waits and _exchange(rank, wait, waits[peer])}
            if missing := set(wait.peers) - there:
                edges[rank] = missing
        return cls(waits, edges, places)

    def odd(self, world_size: int) -> int | None:
        """The one rank that is in another collective than all others, which are more than half of all ranks.

        These must be members of its group as well: otherwise one of them may have skipped what it waits for.
        """
        counts = Counter(self.places.values()).most_common()
        if (
            len(self.places) < len(self.waits)
            or len(counts) != 2
            or counts[1][1] != 1
            or 2 * counts[0][1] <= world_size
        ):
            return None
        odd = next(rank for rank, place in self.places.items() if place == counts[1][0])
        return odd if self.waits.keys() <= {*self.waits[odd].members} else None

    def awaited(self) -> int | None:
        """The rank at the end of all chains, which waits for no other; ``None`` where there are several, or a ring."""
        ends = set[int]().union(*self.edges.values()) - self.edges.keys()
        return None if len(ends) != 1 or self.ring() else next(iter(ends))

    def ring(self) -> list[int]:
        """Ranks that wait for each other in a ring, beginning with the lowest; the shortest such ring."""
        ring: list[int] = []
        for start in sorted(self.edges):
            paths, seen = [[start]], {start}
            while paths and not (ring and len(paths[0]) >= len(ring)):
                path = paths.pop(0)
                peers = sorted(self.edges.get(path[-1], ()))
                if start in peers:
                    ring = path
                    break
                new = [peer for peer in peers if peer > start and peer not in seen]
                seen.update(new)
                paths += [[*path, peer] for peer in new]
        return ring

    @property
    def is_long(self) -> bool:
        """Whether a chain has more than one link."""
        return any(len(chain) > 2 for chain in self._chains())

    def text(self) -> str:
        """``rank 3 waits in recv for rank 2, which waits in recv for rank 1``: the ring, or the longest chain."""
        ring = self.ring()
        path = [*ring, ring[0]] if ring else max(self._chains(), key=len, default=[])
        said = [f"waits in {self._call(rank)} for rank {peer}" for rank, peer in itertools.pairwise(path)]
        return f"rank {path[0]} {', which '.join(said)}" if path else ""

    def _chains(self) -> Iterator[list[int]]:
        for start in sorted(self.edges):
            path = [start]
            while peers := self.edges.get(path[-1], set()) - {*path}:
                path.append(min(peers))
            yield path

    def _call(self, rank: int) -> str:
        wait = self.waits[rank]
        everyone = {*self.waits, *(peer for each in self.waits.values() for peer in each.members)}
        is_of_some = wait.is_collective and len(wait.members) < len(everyone)
        return f"{wait.call} of {rank_names(wait.members)}" if is_of_some else wait.call


def _exchange(rank: int, wait: Wait, their: Wait) -> bool:
    """Whether a peer sends what this rank receives, or receives what it sends."""
    return not their.is_collective and rank in their.peers and ("send" in wait.call) != ("send" in their.call)
