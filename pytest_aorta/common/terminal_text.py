"""Texts that others have written, on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text that does nothing to a terminal but be shown."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def one_line(text: str) -> str:
    """The same without line breaks and runs of spaces, for a row of a table or a list."""
    return " ".join(printable(text).split())
