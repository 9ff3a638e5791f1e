"""Lists of numbers as taskset and the kernel write them: ``0-2,5``."""

from __future__ import annotations

import re
from collections.abc import Iterable


def format_ranges(numbers: Iterable[int]) -> str:
    """``{0, 1, 2, 5}`` as ``0-2,5``."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_ranges(text: str) -> list[range]:
    """``0-2,5`` as ``[range(0, 3), range(5, 6)]``: in the order of the text, and not joined.

    Raises:
        ValueError: a part is neither a number nor a range.
    """
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError(f"{part.strip()[:100]!r} is neither a number nor a range")
        found.append(range(first, last + 1))
    return found
