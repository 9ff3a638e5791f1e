"""Texts that others have written, for an HTML page: what is not to be seen is shown as such, and length is bounded."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from pytest_aorta.common.texts import read_tail, without_runner

#: Colours and movements of a terminal, which are not what was said.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

#: Runs of what is not printable, among them controls, lone surrogates and marks that turn the direction of a text.
_HIDDEN = re.compile(r"[^\n\t -~\u00a1-\u00ac\u00ae-\u02ff]")

#: Longest name, and line of a heading.
_LINE = 200

#: Lines, and bytes, that are shown of the end of a log.
TAIL_LINES = 40
TAIL_BYTES = 8_192

_CUT = "\N{HORIZONTAL ELLIPSIS}"


def plain(text: str) -> str:
    """A text of several lines that shows what is in it, and does nothing."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:  # a progress bar, of which a terminal shows the last state
        text = re.sub(r"[^\n]*\r(?=[^\n\r])", "", text.replace("\r\n", "\n")).replace("\r", "")
    return _HIDDEN.sub(lambda found: found[0] if found[0].isprintable() else "\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, longest: int = _LINE) -> str:
    """A text without line breaks, cut in the middle where it is too long: names differ at their ends."""
    line = " ".join(plain(text[: 20 * longest]).split())
    if len(line) <= longest:
        return line
    return f"{line[: longest * 2 // 3]}{_CUT}{line[-(longest // 3) + 1 :]}"


def bounded(text: str, most_bytes: int = TAIL_BYTES, most_lines: int = TAIL_LINES) -> str:
    """The end of a text, with a first line that says how much is left out."""
    lines = plain(text).rstrip().split("\n")
    kept = "\n".join(lines[-most_lines:])
    kept = kept.encode()[-most_bytes:].decode(errors="ignore")
    cut = len("\n".join(lines)) - len(kept)
    return f"[{_CUT} {cut:,} characters before]\n{kept}" if cut > 0 else kept


def log_tail(path: Path) -> str:
    """The last lines of a log; empty where there are none."""
    if not os.path.isfile(path):  # to open a pipe would wait for its writer
        return ""
    lines = without_runner(plain(read_tail(path, TAIL_BYTES)).rstrip().split("\n"))
    kept = "\n".join(lines[-TAIL_LINES:])
    before = path.stat().st_size - len(kept.encode())
    is_cut = len(lines) > TAIL_LINES or path.stat().st_size > TAIL_BYTES
    return f"[{_CUT} {before:,} bytes before]\n{kept}" if is_cut else kept


def inside(folder: Path, relative: str) -> Path | None:
    """The path of a file below ``folder``; ``None`` for one that leads out of it: records may come from elsewhere."""
    try:
        path = (folder / relative).resolve()
        return path if path.is_relative_to(_resolved(folder)) else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, a circle of links
        return None


@lru_cache(maxsize=4)
def _resolved(folder: Path) -> Path:
    return folder.resolve()
