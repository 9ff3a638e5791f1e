"""Ranks and devices that compute longer than the others of their trials."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator

from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.facts import TrialFacts

#: Chance that any rank or device of a table is named although all are alike, at most.
_STRAGGLER_LEVEL = 1e-4

#: Named only if it takes at least so many times the median of all ranks, in half of its trials.
_STRAGGLES_BY = 1.05


def slow_ranks(cells: Iterable[CellTrials]) -> Iterator[str]:
    """Name slow ranks: ``rank 3 is the slowest in 20 of 20 trials, 1.4 times the median of all ranks``.

    If a device was slow with several ranks, it is named in their place. Rank k has the k-th device of its trial.

    Binomial test: if all ranks were alike, each would be the slowest in 1/n of the trials with n ranks. Corrected for
    all ranks of all cells, and all devices (Bonferroni).
    """
    measured = [
        (cell.key, facts, facts.slowest) for cell in cells for facts in cell.finished if facts.slowest is not None
    ]
    if not measured:
        return
    from scipy.special import bdtrc

    # Trials by rank of a cell, and by device, with whether it was the slowest.
    taking_part = defaultdict[tuple[str, str], list[tuple[TrialFacts, bool]]](list)
    ranks_on = defaultdict[str, set[int]](set)
    for key, facts, (slowest, _, size) in measured:
        for rank in range(size):
            taking_part[f"{key.label}: ", f"rank {rank}"].append((facts, rank == slowest))
            if (device := _name_device(rank, facts)) is not None:
                taking_part["", device].append((facts, rank == slowest))
                ranks_on[device].add(rank)
    asked = {each: those for each, those in taking_part.items() if each[0] or len(ranks_on[each[1]]) > 1}
    slow = set[int]()
    for (where, who), those in sorted(asked.items(), key=lambda item: bool(item[0][0])):  # devices first
        slowest_in = [(facts, facts.slowest) for facts, is_slowest in those if is_slowest and facts.slowest is not None]
        fewest = min(facts.slowest[2] for facts, _ in those if facts.slowest is not None)
        if float(bdtrc(len(slowest_in) - 1, len(those), 1 / fewest)) * len(asked) >= _STRAGGLER_LEVEL:
            continue
        times = statistics.median(ratio for _, (_, ratio, _) in slowest_in)
        if times < _STRAGGLES_BY or 2 * sum(id(facts) in slow for facts, _ in slowest_in) > len(slowest_in):
            continue
        what = f"in {len(slowest_in)} of {len(those)} trials, {times:.2g} times the median of all ranks"
        if where:
            devices = {_name_device(slowest_in[0][1][0], facts) for facts, _ in slowest_in}
            its = devices.pop() if len(devices) == 1 else None
            look = f"its {its or 'device'}, its host, and what only it does"
            yield f"{where}{who} is the slowest {what}: look at {look}"
        else:
            slow.update(id(facts) for facts, _ in slowest_in)
            yield f"the rank on {who} is the slowest {what}"


def _name_device(rank: int, facts: TrialFacts) -> str | None:
    """``device 3``, or with its host; ``None`` unless each rank has one device."""
    place = facts.place
    if facts.slowest is None or len(place.devices) != facts.slowest[2]:
        return None
    return f"device {place.devices[rank]}" + (f" of {place.host}" if place.host else "")
