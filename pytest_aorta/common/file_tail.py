"""The end of a file that may be long."""

from __future__ import annotations

from pathlib import Path


def read_tail(path: Path, size: int) -> str:
    """The last ``size`` bytes of a file as text; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
