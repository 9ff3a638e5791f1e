"""The smallest part of a set that still has an effect: delta debugging."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import TypeVar

Element = TypeVar("Element")


def ddmin(elements: Sequence[Element]) -> Generator[tuple[Element, ...], bool, tuple[Element, ...]]:
    """Find a subset that has an effect of which no single element can be left out.

    Yields each subset to be tried, in the order of ``elements``, and is sent whether it has the effect; none is asked
    for twice. All elements together have it, none of them has not: neither is asked for. The proposals depend on the
    answers alone.

    Returns what is left. It is 1-minimal: without any one of its elements the effect is gone. Where the effect is
    monotone (whatever contains a set with the effect has it), no smaller part of it has the effect at all.

    Zeller & Hildebrandt 2002, "Simplifying and isolating failure-inducing input", algorithm *ddmin*: each part, then
    what is left without each part, then twice as many parts. For one element that acts, about 2 log2(n) trials of a
    subset; at worst n**2 + 3 n.
    """
    answers: dict[tuple[int, ...], bool] = {(): False, tuple(range(len(elements))): True}
    left = tuple(range(len(elements)))
    parts = 2
    while len(left) > 1:
        split = _split(left, parts)
        complements = [tuple(each for each in left if each not in part) for part in split]
        # With two parts, the complements are the parts themselves.
        reduced = None
        for tried in [*split, *(complements if parts > 2 else [])]:
            if tried not in answers:
                answers[tried] = yield tuple(elements[each] for each in tried)
            if answers[tried]:
                reduced = tried
                break
        if reduced is not None:
            parts = 2 if reduced in split else max(parts - 1, 2)
            left = reduced
        elif parts < len(left):
            parts = min(2 * parts, len(left))
        else:
            break
        parts = min(parts, max(len(left), 2))
    return tuple(elements[each] for each in left)


def _split(elements: tuple[int, ...], parts: int) -> list[tuple[int, ...]]:
    """Into so many parts, of which the sizes differ by one at most."""
    size, more = divmod(len(elements), parts)
    starts = [number * size + min(number, more) for number in range(parts + 1)]
    return [elements[start:end] for start, end in pairwise(starts)]
