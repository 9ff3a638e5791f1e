"""Lists of names in messages: the first few, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence


def first_names(names: Sequence[str], most: int) -> list[str]:
    """The first ``most`` of ``names``; where there are more, an entry such as ``2 more`` besides."""
    more = len(names) - most
    return [*names[:most], *([f"{more} more"] if more > 0 else [])]
