"""The commands of workflow.toml. Each writes under another name first: a product that is there is complete."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def write(product: Path, text: str) -> None:
    """Write a product, whole or not at all."""
    temporary = product.with_suffix(".in_progress")
    temporary.write_text(text)
    os.replace(temporary, product)


def square(x: str, y: str, product: str) -> None:
    """The square of the distance of a point from the origin."""
    write(Path(product), f"{int(x) ** 2 + int(y) ** 2}\n")


def add(workspace: str, *directories: str) -> None:
    """The sum over the points of a group, in the directory of each."""
    folders = [Path(workspace, name) for name in directories]
    total = sum(int((folder / "squared.txt").read_text()) for folder in folders)
    for folder in folders:
        write(folder / "sum.txt", f"{total}\n")


if __name__ == "__main__":
    {"square": square, "add": add}[sys.argv[1]](*sys.argv[2:])
