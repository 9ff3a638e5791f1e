"""Columns of text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from pytest_aorta.common.texts import one_line


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines with aligned columns, two spaces between them; columns that are empty in all rows are left out.

    Texts are made printable, and are one line each. ``right``: columns that are aligned to the right.
    """
    shown = [[one_line(text) for text in row] for row in rows]
    kept = [index for index, column in enumerate(zip(*shown, strict=True)) if any(column)]
    widths = {index: max(_width(row[index]) for row in shown) for index in kept}
    return ["  ".join(_padded(row[i], widths[i], i in right) for i in kept).rstrip() for row in shown]


def _padded(text: str, width: int, right: bool) -> str:
    padding = " " * (width - _width(text))
    return padding + text if right else text + padding


def _width(text: str) -> int:
    """Cells of a terminal that a text takes: two for a wide character of East Asia, none for a combining one."""
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
