"""What the ranks of a trial leave in its artifacts folder, attempt by attempt, and where to find it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Variable with the number of a rank's attempt.
ATTEMPT = "AORTA_ATTEMPT"

#: Bytes that are read of an error file.
_ERROR_FILE = 2**20


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Where the ranks of an attempt write, below a trial's artifacts ``folder``."""
    return folder / f"attempt_{attempt}"


def last_attempt(folder: Path) -> int:
    """The last attempt that has left something; 0 when none has."""
    numbers = [path.name.partition("_")[2] for path in folder.glob("attempt_*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def find_file(folder: Path, attempt: int, rank: int, name: str) -> Path | None:
    """What a rank of an attempt wrote below a trial's artifacts ``folder``: ``stdout.log``, ``error.json``, ..."""
    own = folder / f"attempt_{attempt}" / f"rank_{rank}.{name}"
    of_torchrun = folder.glob(f"torchrun/*/attempt_{attempt}/{rank}/{name}")
    return next((path for path in (own, *of_torchrun) if path.exists()), None)


def find_log(folder: Path, attempt: int, rank: int, stream: str) -> str | None:
    """A rank's log, relative to the folder of the trial file."""
    found = find_file(folder, attempt, rank, f"{stream}.log")
    if found is None or (stream == "stacks" and found.stat().st_size == 0):  # an empty one is cleared away
        return None
    return found.relative_to(folder.parent).as_posix()


def read_error_file(path: Path | None) -> dict[str, Any] | None:
    """What torch's ``record``, or a workload, has written to a rank's error file; ``None`` without one."""
    if path is None:
        return None
    try:
        content = json.loads(path.read_bytes()[:_ERROR_FILE])
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else {"message": content}
