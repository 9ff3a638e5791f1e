"""Answers about files that do not change, kept in the user's cache folder from run to run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

Entry = dict[str, list[str]]

#: Part of each key. A search that finds something else than before needs another number.
_VERSION = 1

#: Files in the folder before the older half of them is removed. One takes some hundred bytes to some kilobytes.
_MOST = 2000

#: Where a user without a writable home, as in a container, has one.
_SHARED = Path("/var/tmp")


class SearchCache:
    """Lists of texts by name, under a key. A damaged entry is as good as none; one that cannot be written is lost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: str) -> Entry | None:
        """The entry that was written last."""
        try:
            found = json.loads((self._folder / key).read_bytes())
        except (OSError, ValueError):
            return None
        is_sound = isinstance(found, dict) and all(
            isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in found.values()
        )
        return found if is_sound else None

    def write(self, key: str, value: Entry) -> None:
        """Keep an entry."""
        with contextlib.suppress(OSError):
            self._prune()
            # Without tempfile, which a trial may not have imported: it brings a random generator along.
            unfinished = self._folder / f"{key}.{os.urandom(4).hex()}.tmp"
            try:
                unfinished.write_text(json.dumps(value), encoding="utf-8")
                os.replace(unfinished, self._folder / key)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise

    def _prune(self) -> None:
        with os.scandir(self._folder) as entries:
            files = list(entries)
        if len(files) < _MOST:
            return
        for entry in sorted(files, key=lambda it: it.stat().st_mtime_ns)[: _MOST // 2]:
            os.unlink(entry)


def cache_key(*parts: object) -> str:
    """A key for what follows from these parts, which are of JSON."""
    return hashlib.sha256(json.dumps([_VERSION, *parts]).encode()).hexdigest()[:40]


def open_cache() -> SearchCache | None:
    """The one of this user; ``None`` where the user has no writable folder that is closed to other users."""
    for folder in _folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.lstat()
        except OSError:
            continue
        is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if is_own and folder.is_dir() and not folder.is_symlink() and os.access(folder, os.W_OK):
            return SearchCache(folder)
    return None


def _folders() -> list[Path]:
    """``$XDG_CACHE_HOME``, by the XDG Base Directory Specification only if it is absolute, else ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~/.cache"))
    own = [base / "pytest-aorta" / "variable-names"] if base.is_absolute() else []
    return [*own, _SHARED / f"pytest-aorta-{os.geteuid()}"]
