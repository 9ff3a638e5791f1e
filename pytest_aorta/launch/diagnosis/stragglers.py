"""How long each rank computes between two collectives, by when all of them have entered these."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pytest_aorta.launch.diagnosis.evidence import Collective

#: Fewer collectives than these say nothing; those that come first are a warm-up.
_FEWEST, _WARM_UP = 8, 2


def busy_ms(entered: Mapping[int, Sequence[Collective]]) -> dict[int, float]:
    """Of each rank, how long it computes on average before it enters a collective of all ranks, in milliseconds.

    A collective begins when the last rank enters it: from then on, a rank computes until it enters the next. What one
    rank computes longer, the others wait, so that the times of their steps are the same. Empty where too few
    collectives of all ranks are known. The clocks of the ranks have to agree: ask for ranks of one host.
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
    if len(entered) < 2 or len(longest) < _FEWEST:
        return {}
    spans: dict[int, list[float]] = {rank: [] for rank in entered}
    for before, after in itertools.pairwise(longest):
        begin = max(before.values())
        for rank, at in after.items():
            spans[rank].append(max(0, at - begin) / 1e6)
    return {rank: statistics.fmean(values) for rank, values in spans.items()}
