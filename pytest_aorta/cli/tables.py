"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from pytest_aorta.common.texts import one_line


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines with aligned columns, two spaces between them; columns that are empty in all rows are left out.

    Not rich's Table, which wraps lines and takes seconds for ten thousand trials. Texts are made printable, and are one
    line each. ``right``: columns that are aligned to the right.
    """
    shown = [[one_line(text) for text in row] for row in rows]
    kept = [index for index, column in enumerate(zip(*shown, strict=True)) if any(column)]
    widths = {index: max(cell_len(row[index]) for row in shown) for index in kept}

    def padded(text: str, index: int) -> str:
        padding = " " * (widths[index] - cell_len(text))
        return padding + text if index in right else text + padding

    return ["  ".join(padded(row[index], index) for index in kept).rstrip() for row in shown]
