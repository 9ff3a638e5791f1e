"""What is known of a workspace without looking at all of its files: one cache, and journals of what runs complete.

``state.json`` holds everything. A process that runs actions appends to a journal of its own in ``staged/``; a line is
one write, so that ``kill -9`` loses at most the last one. The next reader folds the journals that have ended into the
cache. All of it can be made again from records and products (``pytest-aorta scan``), but for failures of commands.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import Self

from pytest_aorta.settings import RequestError
from pytest_aorta.trials.loading import file_digest
from pytest_aorta.workflow.recipe import Recipe
from pytest_aorta.workspace.atomic import locked, write_text

_STATE, _JOURNALS = "state.json", "staged"

#: Bytes of a line of a journal; a longer one says nothing, and is not held in memory.
_LONGEST = 2**24

#: How a trial has ended, as its record says, or a command.
Outcome = Literal["ok", "workload_failed", "timeout", "infrastructure_failed", "completed", "failed"]

#: With the key of the request that a trial was of, or of the command; empty for products that were found.
Completion = tuple[Outcome, str]

#: Action to unit to its completion; ``None`` where there is none any more.
Completions = dict[str, dict[str, Completion | None]]


class Request(BaseModel):
    """What a trial was asked for: the digest of its cell's request, and digests of source files by path."""

    model_config = ConfigDict(frozen=True)

    digest: str = ""
    sources: dict[str, str] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        text = json.dumps([self.digest, self.sources], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Decision(BaseModel):
    """Cells of an action that need no more trials, with the reasons; ``asked``: what the decision is about."""

    asked: str = ""
    cells: dict[str, str] = Field(default_factory=dict)


class Known(BaseModel):
    """The content of ``state.json``; a line of a journal has what is new."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    requests: dict[str, Request] = Field(default_factory=dict)
    completed: Completions = Field(default_factory=dict)
    decided: dict[str, Decision] = Field(default_factory=dict)
    #: Action to unit to the end of what a failed command has printed.
    outputs: dict[str, dict[str, str]] = Field(default_factory=dict)
    #: Journals that are in it, and are still there when a reader was killed.
    folded: list[str] = Field(default_factory=list)
    #: Directory to time of modification, size and content of its value file.
    value_file: str | None = None
    values: dict[str, tuple[int, int, Any]] = Field(default_factory=dict)

    def add(self, new: Known) -> None:
        """Take completions, requests and decisions over; they replace what was known of the same units."""
        self.requests.update(new.requests)
        for action, units in new.completed.items():
            own = self.completed.setdefault(action, {})
            for unit, completion in units.items():
                self.outputs.get(action, {}).pop(unit, None)
                if completion is None:
                    own.pop(unit, None)
                else:
                    own[unit] = completion
        for action, texts in new.outputs.items():
            self.outputs.setdefault(action, {}).update(texts)
        for action, decision in new.decided.items():
            before = self.decided.get(action)
            cells = {**before.cells, **decision.cells} if before and before.asked == decision.asked else decision.cells
            self.decided[action] = Decision(asked=decision.asked, cells=cells)

    def text(self) -> str:
        return json.dumps(self, default=lambda model: {name: each for name, each in model if each or name == "version"})


class Journal:
    """Appends what a process completes to a file of its own. A lock on it says that it may still grow.

    The file is made with the first line. What a crash of the machine loses, records and products still say.
    """

    def __init__(self, index: Path) -> None:
        self._folder = index / _JOURNALS
        self._fd: int | None = None
        self._requests: set[str] = set()
        self._is_torn = False

    def add(
        self,
        action: str,
        unit: str,
        outcome: Outcome | None,
        request: Request | None = None,
        *,
        key: str = "",
        output: str = "",
    ) -> None:
        """Append what has become of a unit, ``None`` for nothing.

        ``key``: of a command that is completed, see ``Project.key_of``; ``output``: the end of that of one that failed.
        """
        key = request.key if request is not None else key
        new = Known(completed={action: {unit: None if outcome is None else (outcome, key)}})
        if output:
            new.outputs[action] = {unit: output}
        if request is not None and key not in self._requests:  # sources are most of a line, and those of one workload
            new.requests[key] = request
        self.append(new)
        self._requests.add(key)

    def append(self, new: Known) -> None:
        if self._fd is None:
            # It gets its name when it is locked: without a lock it would look as if it had ended. Names are in the
            # order of time, in which journals are folded: the last completion counts.
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{time.time_ns():020}-{os.urandom(8).hex()}"
            temporary = self._folder / f"{name}.tmp"
            self._fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.rename(self._folder / f"{name}.jsonl")
        text = ("\n" if self._is_torn else "").encode() + new.text().encode() + b"\n"
        self._is_torn = True
        if os.write(self._fd, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._is_torn = False

    def close(self) -> None:
        """Nothing more comes: the lines are on disk, and may be folded."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = None


def _has_ended(journal: Path) -> bool:
    with contextlib.suppress(OSError), journal.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


class Workspace:
    """What is known of the workspace of a recipe: nothing but what is looked up on disk, unless it is ``from_cache``.

    ``damaged``: files of the index that could not be read, with the reason; what they had said is missing.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._index = recipe.index
        self._folder, self._value_file = str(recipe.directories), str(recipe.workspace.value_file or "")
        self._names: list[str] | None = None
        self._digests: dict[str, str | None] = {}
        self._is_new = False
        self.damaged: dict[str, str] = {}
        self.known = Known()

    @classmethod
    def from_cache(cls, recipe: Recipe) -> Self:
        """With the cache and the journals; those that have ended are folded into it, where it can be written.

        An edited value file is seen by a scan only.
        """
        found = cls(recipe)
        if found._journals():
            with locked(found._index):
                growing = found._fold()
            found._add(growing, growing=True)
        else:
            found._load()
        if found.known.value_file != str(recipe.workspace.value_file):
            found.known.value_file, found.known.values = str(recipe.workspace.value_file), {}
        return found

    def _journals(self) -> list[Path]:
        try:
            folder = self._index / _JOURNALS
            return sorted(path for path in folder.iterdir() if path.suffix == ".jsonl" and path.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    @property
    def is_growing(self) -> bool:
        return not all(map(_has_ended, self._journals()))

    def _load(self) -> None:
        self.known = Known()
        try:
            self.known = Known.model_validate(json.loads((self._index / _STATE).read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self.damaged[_STATE] = f"cannot be read: {error.strerror}"
        except (ValueError, RecursionError):
            self.damaged[_STATE] = "is damaged, or of another version"

    def _fold(self) -> list[Path]:
        self._load()
        found = self._journals()
        ended = [path for path in found if _has_ended(path)]
        self._add(ended)
        self.known.folded = [path.name for path in ended]
        if ended and not self.damaged:  # else they stay until a scan has found what is missing
            with contextlib.suppress(OSError):
                self._write(self.known)
                for path in ended:
                    path.unlink(missing_ok=True)
        return [path for path in found if path not in ended]

    def _add(self, journals: Iterable[Path], *, growing: bool = False) -> None:
        for journal in journals:
            if journal.name in self.known.folded:
                continue
            bad = 0
            try:
                with journal.open("rb") as file:
                    while line := file.readline(_LONGEST):
                        if not line.endswith(b"\n") and len(line) < _LONGEST:
                            break  # its writer was killed, or is writing it now
                        try:
                            if line.strip():
                                self.known.add(Known.model_validate(json.loads(line)))
                        except (ValueError, RecursionError):
                            bad += 1
            except FileNotFoundError:  # folded by another reader in the meantime
                continue
            except OSError as error:
                self.damaged[f"{_JOURNALS}/{journal.name}"] = f"cannot be read: {error.strerror}"
            if bad and not growing:  # it is named when it has ended
                lines = f"{bad:,} line{'s' * (bad > 1)}"
                self.damaged[f"{_JOURNALS}/{journal.name}"] = f"has {lines} that cannot be read"

    def _write(self, looked_up: Known) -> None:
        self.known = self.known.model_copy(update={"value_file": looked_up.value_file, "values": looked_up.values})
        used = {each[1] for units in self.known.completed.values() for each in units.values() if each is not None}
        self.known.requests = {key: each for key, each in self.known.requests.items() if key in used}
        write_text(self._index / _STATE, self.known.text())

    def save(self) -> None:
        """Keep what was looked up, for the next process; what others have completed in the meantime stays."""
        if not self._is_new:
            return
        with contextlib.suppress(OSError):
            self._index.mkdir(exist_ok=True)
            with locked(self._index):
                latest = Workspace(self._recipe)
                latest._load()
                if not latest.damaged:
                    latest._write(self.known)
                    self._is_new = False

    def record(self, new: Known, is_gone: Callable[[str, str], bool] = lambda action, unit: False) -> tuple[int, int]:
        """Note what was found on disk, and forget what is gone; how many of each.

        What has changed since this object was read is newer than the search, and stays. ``is_gone``: whether to
        forget a unit of an action that was not found. Raises ``OSError``, and leaves the index as it was.
        """
        self._index.mkdir(parents=True, exist_ok=True)
        before = self.known.completed
        changes = Known(requests=new.requests)
        changed = removed = 0
        with locked(self._index):
            own = self.known
            self._fold()
            now = self.known.completed
            for action in before.keys() | new.completed.keys():
                found, known = new.completed.get(action, {}), before.get(action, {})
                for unit, completion in found.items():
                    if now.get(action, {}).get(unit) == known.get(unit) != completion:
                        changes.completed.setdefault(action, {})[unit] = completion
                        changed += 1
                for unit in known.keys() - found.keys():
                    if now.get(action, {}).get(unit) == known[unit] and is_gone(action, unit):
                        changes.completed.setdefault(action, {})[unit] = None
                        removed += 1
            self.known.add(changes)
            self._write(own)
        self.damaged, self._is_new = {}, False
        return changed, removed

    def clean(self, *, completed: bool, directories: bool) -> None:
        with locked(self._index):
            self._fold()
            forgotten: dict[str, Any] = {"values": {}} if directories else {}
            if completed:
                forgotten |= {"completed": {}, "requests": {}, "decided": {}, "outputs": {}}
                for journal in self._journals():
                    journal.unlink(missing_ok=True)
            if completed and directories:
                (self._index / _STATE).unlink(missing_ok=True)
            elif (self._index / _STATE).exists():
                write_text(self._index / _STATE, self.known.model_copy(update=forgotten).text())

    @property
    def names(self) -> list[str]:
        """The directories, sorted: all folders but the results of workloads and the index."""
        if self._names is None:
            without = {action.name for action in self._recipe.actions if action.is_matrix} | {self._index.name}
            folder = self._recipe.directories
            try:
                with os.scandir(folder) as entries:
                    self._names = sorted({entry.name for entry in entries if entry.is_dir()} - without)
            except FileNotFoundError:
                return []  # it is made when something is in it
            except OSError as error:
                raise RequestError(f"the workspace {folder} cannot be read: {error.strerror}") from None
        return self._names

    def value_of(self, name: str) -> Any:
        if self._recipe.workspace.value_file is None:
            return None
        if name not in self.known.values:
            self.known.values[name] = self._read_value(name)
            self._is_new = True
        return self.known.values[name][2]

    def refresh_values(self, seen: Callable[[], object] = lambda: None, only: Collection[str] | None = None) -> None:
        """Read the value files, or ``only`` some, that have changed; ``seen`` is called for each directory."""
        if self._recipe.workspace.value_file is None:
            return
        earlier, self._is_new = self.known.values, True
        self.known.values = {} if only is None else dict(earlier)
        for name in self.names if only is None else [name for name in self.names if name in only]:
            self.known.values[name] = self._read_value(name, earlier.get(name))
            seen()

    def _read_value(self, name: str, earlier: tuple[int, int, Any] | None = None) -> tuple[int, int, Any]:
        path = f"{self._folder}/{name}/{self._value_file}"  # a Path each takes as long as to read the file
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # half the time of a file object
            try:
                status = os.fstat(fd)
                if earlier is not None and earlier[:2] == (status.st_mtime_ns, status.st_size):
                    return earlier
                content = os.read(fd, status.st_size + 1)
            finally:
                os.close(fd)
            return status.st_mtime_ns, status.st_size, json.loads(content.decode())
        except OSError as error:
            raise RequestError(f"the value of directory {name!r} cannot be read: {error.strerror}: {path}") from None
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the value of directory {name!r} is not valid JSON: {error}: {path}") from None

    def have_changed(self, sources: Mapping[str, str]) -> bool:
        for path in sources.keys() - self._digests.keys():
            self._digests[path] = file_digest(Path(path))
        return any(self._digests[path] != digest for path, digest in sources.items())
