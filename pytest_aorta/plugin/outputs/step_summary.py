"""The summary of a step of GitHub Actions, to which each pytest run of the step appends."""

from __future__ import annotations

from pathlib import Path

#: GitHub shows nothing of a summary that is larger, in bytes.
LARGEST = 1024 * 1024

_CUT = "\n\nThe rest is in `matrix.md`: the summary of a step has no more room.\n"


def append(summary: Path, markdown: str) -> None:
    """Append a text to the file of ``GITHUB_STEP_SUMMARY``; as many lines as there is room for.

    Raises:
        OSError: the file cannot be written.
    """
    there = summary.stat().st_size if summary.exists() else 0
    text = f"\n{markdown}".encode(errors="replace")
    room = LARGEST - there
    if len(text) > room:
        kept = text[: max(0, room - len(_CUT))].rpartition(b"\n")[0]
        text = kept + _CUT.encode() if kept.strip() else b""
    with summary.open("ab") as file:
        file.write(text)
