"""Several comparisons at once: the chance of any false alarm among them."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """The adjusted p values, in the order given: each may be compared with the level of the whole family.

    Holm 1979, "A simple sequentially rejective multiple test procedure": the smallest times the number of comparisons,
    the second times one less, and so on, never decreasing and at most 1. Valid whatever the dependence of the
    comparisons, such as a baseline that all of them share.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
