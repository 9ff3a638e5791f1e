"""Ranks that are slower than the others, in trials that they do not fail."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator

from pytest_aorta.triage.cells import CellStatistics

#: Below this chance, all cells together, a rank is not the slowest so often by chance.
_LEVEL = 1e-4

#: As many times the median of all ranks, in half of the trials at least: less changes nothing for the others.
_LEAST = 1.05


def slow_ranks(cells: Iterable[CellStatistics]) -> Iterator[str]:
    """``rank 3 is the slowest in 20 of 20 trials, 1.4 times the median``, for each cell in which one is.

    Binomial: were all ranks alike, each would be the slowest in one of as many trials as there are ranks. The chance is
    that for any rank of any cell (Bonferroni).
    """
    measured = {cell.key: [facts.slowest for facts in cell.finished if facts.slowest is not None] for cell in cells}
    measured = {key: each for key, each in measured.items() if each}
    for key, slowest in measured.items():
        from scipy.stats import binom

        (rank, count), *_ = Counter(rank for rank, _, _ in slowest).most_common(1)
        ranks = min(size for _, _, size in slowest)
        times = statistics.median(ratio for each, ratio, _ in slowest if each == rank)
        chance = float(binom.sf(count - 1, len(slowest), 1 / ranks)) * ranks * len(measured)
        if chance < _LEVEL and times >= _LEAST:
            yield (
                f"{key.label}: rank {rank} is the slowest in {count} of {len(slowest)} trials, {times:.2g} times the "
                "median of all ranks: look at its device, its host, and what only it does"
            )
