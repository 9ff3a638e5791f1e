"""Small files of the kernel, read whole."""

from __future__ import annotations

import os


def first_line(file: str | os.PathLike[str]) -> str | None:
    """The file's first line without blanks at its ends; ``None`` without the file, or when the line is empty."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.readline().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None


def keyed_lines(file: str | os.PathLike[str], separator: str = ":") -> dict[str, str]:
    """``key: value`` lines as a dictionary, the first of equal keys; empty without the file."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            text = opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, separates, value = line.partition(separator)
        if separates:
            found.setdefault(key.strip(), value.strip())
    return found
