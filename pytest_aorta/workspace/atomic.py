"""Files that are absent or complete, whenever the process or the machine stops."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Any) -> None:
    """Write strict JSON: a temporary file in the same folder, fsync, rename.

    Raises:
        ValueError: ``data`` holds a NaN or infinity.
        OSError: the folder cannot be written; nothing is left behind.
    """
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(fd, 0o644)  # mkstemp is private; results are to be shared
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
