"""Which source files have changed since a trial ran; a file is read only when its size or time has changed."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from pytest_aorta.trials.loading import file_digest
from pytest_aorta.workspace.atomic import write_text

#: A file that has changed less than this ago may change again without getting another time of modification.
_COARSEST_CLOCK_NS = 2 * 10**9


class SourceChanges:
    """Digests of source files as they are now.

    Args:
        folder: of the index, where digests are kept; where it cannot be written, nothing is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "sources.json"
        self._known: dict[str, list[int | str]] | None = None
        self._now: dict[str, str | None] = {}
        self._is_new = False

    def have_changed(self, sources: Mapping[str, str]) -> bool:
        """Whether any of these files, path to digest, has another content now, or is gone."""
        now = {path: self._digest(path) for path in sources}  # all of them, for ``looked_at``
        return now != dict(sources)

    @property
    def looked_at(self) -> list[str]:
        """The files that ``have_changed`` was asked about."""
        return list(self._now)

    def save(self) -> None:
        """Keep the digests for the next process."""
        if self._is_new:
            with contextlib.suppress(OSError):
                write_text(self._file, json.dumps(self._known))

    def _digest(self, path: str) -> str | None:
        if path not in self._now:
            self._now[path] = self._look(path)
        return self._now[path]

    def _look(self, path: str) -> str | None:
        if self._known is None:
            self._known = self._load()
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        known = self._known.get(path)
        if known is not None and known[:2] == [status.st_mtime_ns, status.st_size]:
            return str(known[2])
        now = time.time_ns()
        digest = file_digest(Path(path))
        if digest is not None and now - status.st_mtime_ns > _COARSEST_CLOCK_NS:
            self._known[path] = [status.st_mtime_ns, status.st_size, digest]
            self._is_new = True
        return digest

    def _load(self) -> dict[str, list[int | str]]:
        try:
            content = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}
