"""Temporary files that a killed writer has left beside trial files."""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePosixPath


class Leftovers:
    """Those below a results directory. Of each trial they are removed by whoever writes that trial's file."""

    def __init__(self, results: Path) -> None:
        self._results = results
        #: By folder, then by the name of the trial file. Folders are large: each is looked at once.
        self._found: dict[PurePosixPath, dict[str, list[Path]]] = {}

    def remove(self, file: PurePosixPath) -> None:
        """Remove those of a trial file, which is given relative to the results directory."""
        if file.parent not in self._found:
            self._found[file.parent] = _look(self._results / file.parent)
        for path in self._found[file.parent].pop(file.name, []):
            with contextlib.suppress(OSError):
                path.unlink()


def _look(folder: Path) -> dict[str, list[Path]]:
    """As ``atomic.write_json`` names them: ``.trial_3.json.x1y2z3.tmp``."""
    found: dict[str, list[Path]] = {}
    for path in folder.glob(".trial_*.json.*.tmp"):
        found.setdefault(path.name[1:].rsplit(".", 2)[0], []).append(path)
    return found
