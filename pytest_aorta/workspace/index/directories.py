"""The directories of a workspace, and the value of each, without looking at every one of them again.

The list is read again when the workspace itself has changed, values when a directory is new. A value file that is
edited does not change the workspace: to see it, every value file would have to be looked at.
``refresh_values`` does that, for ``pytest-aorta scan``.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pytest_aorta.settings import RequestError
from pytest_aorta.workspace.atomic import write_text

_NAMES, _VALUES = "directories.json", "values.json"

#: A folder that has changed less than this ago may change again without getting another time of modification.
_COARSEST_CLOCK_NS = 2 * 10**9

#: Time of modification, size and value of a value file.
_Entry = tuple[int, int, Any]


class Directories:
    """The directories in a workspace.

    Args:
        folder: of the index, where lists are kept; where it cannot be written, or is ``None``, nothing is kept.
        workspace: of the directories.
        value_file: in each of them; ``None`` where all values are ``None``.
        without: names in the workspace that are no directories of it.
    """

    def __init__(
        self, folder: Path | None, workspace: Path, value_file: Path | None = None, without: Iterable[str] = ()
    ) -> None:
        self._folder = folder
        self._workspace = workspace
        self._value_file = value_file
        self._without = frozenset(without)
        self._names: list[str] | None = None
        self._entries: dict[str, _Entry] | None = None
        self._has_new_entries = False

    @property
    def names(self) -> list[str]:
        """Sorted.

        Raises:
            RequestError: the workspace cannot be read.
        """
        if self._names is None:
            self._names = sorted(set(self._listed()) - self._without)
        return self._names

    def path_of(self, name: str) -> str:
        """The folder of a directory, relative to the workspace."""
        return name

    def value_of(self, name: str) -> Any:
        """The content of a directory's value file.

        Raises:
            RequestError: it cannot be read.
        """
        if self._value_file is None:
            return None
        if self._entries is None:
            self._entries = self._load_entries()
        if name not in self._entries:
            self._entries[name] = self._read_entry(name)
            self._has_new_entries = True
        return self._entries[name][2]

    def refresh_values(self, seen: Callable[[], object] = lambda: None) -> None:
        """Read the value files that have changed since they were read; ``seen`` is called for each directory.

        Raises:
            RequestError: one cannot be read.
        """
        if self._value_file is None:
            return
        earlier = self._load_entries()
        self._entries = {}
        for name in self.names:
            known = earlier.get(name)
            is_same = known is not None and known[:2] == self._stamp(name)
            self._entries[name] = known if known is not None and is_same else self._read_entry(name)
            seen()
        self._has_new_entries = True

    def save(self) -> None:
        """Keep the values that were read, for the next process."""
        if self._has_new_entries and self._entries is not None:
            names = set(self.names)
            kept = {name: entry for name, entry in self._entries.items() if name in names}
            self._write(_VALUES, {"value_file": str(self._value_file), "values": kept})
            self._has_new_entries = False

    def _listed(self) -> list[str]:
        try:
            changed = self._workspace.stat().st_mtime_ns
        except FileNotFoundError:
            return []  # it is made when something is in it
        except OSError as error:
            raise RequestError(f"the workspace {self._workspace} cannot be read: {error.strerror}") from None
        known = self._load(_NAMES)
        if known.get("workspace") == str(self._workspace) and known.get("changed") == changed:
            return [str(name) for name in known.get("names", ())]
        now = time.time_ns()
        try:
            with os.scandir(self._workspace) as entries:
                names = [entry.name for entry in entries if entry.is_dir()]
        except OSError as error:
            raise RequestError(f"the workspace {self._workspace} cannot be read: {error.strerror}") from None
        if now - changed > _COARSEST_CLOCK_NS:
            self._write(_NAMES, {"workspace": str(self._workspace), "changed": changed, "names": names})
        return names

    def _load_entries(self) -> dict[str, _Entry]:
        known = self._load(_VALUES)
        if known.get("value_file") != str(self._value_file):
            return {}
        with contextlib.suppress(AttributeError, KeyError, TypeError, IndexError):  # damaged
            return {name: (entry[0], entry[1], entry[2]) for name, entry in known["values"].items()}
        return {}

    def _stamp(self, name: str) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            status = self._path(name).stat()
            return status.st_mtime_ns, status.st_size
        return None

    def _read_entry(self, name: str) -> _Entry:
        path = self._path(name)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                return status.st_mtime_ns, status.st_size, json.loads(file.read())
        except OSError as error:
            raise RequestError(f"the value of directory {name!r} cannot be read: {error.strerror}: {path}") from None
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the value of directory {name!r} is not valid JSON: {error}: {path}") from None

    def _path(self, name: str) -> Path:
        return self._workspace / name / (self._value_file or "")

    def _load(self, file: str) -> dict[str, Any]:
        """A file of the index; empty where there is none, or it is damaged."""
        try:
            content = json.loads((self._folder / file).read_bytes()) if self._folder is not None else {}
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, file: str, content: object) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                write_text(self._folder / file, json.dumps(content))
