"""What the summary says of a replayed trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Differences shown; the trial file has all.
_MOST = 12


def replay_lines(result: Mapping[str, Any], start: Path) -> Iterator[str]:
    """How a replayed trial has ended, how the one of its record had, and what differs now.

    Args:
        result: its record as plain data.
        start: the folder that the paths of files are shown relative to.
    """
    then = result["replay_of"]
    file = Path(then["file"])
    shown = file.relative_to(start) if file.is_relative_to(start) else file
    before, now = then["exit_status"], result["exit_status"]
    ended = f"{now}, as it was" if before == now else f"{now}, was {before}"
    yield f"replay of {shown} ({then['started_at'][:19]}): {ended}"
    differences = then["differences"]
    if not differences:
        yield "  the same request, seeds and surroundings, as far as the records say"
    for line in differences[:_MOST]:
        yield f"  differs now: {line}"
    if len(differences) > _MOST:
        yield f"  and {len(differences) - _MOST} more: see replay_of in the trial file"
