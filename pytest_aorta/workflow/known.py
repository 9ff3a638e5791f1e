"""The index of a workspace, which saves looking at all of its files, and the journals of running processes.

``index.sqlite`` holds everything, by directory. A process that runs actions appends to a journal of its own in
``staged/``; a line is one write, so that ``kill -9`` loses at most the last one. The next reader folds the journals
that have ended into the index. All of it can be made again from records and products (``pytest-aorta scan``), but for
failures of commands.

The index is one file with SQLite's rollback journal: its write-ahead log needs memory that processes share, which
network file systems do not have.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import resource
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import Self

from pytest_aorta.settings import RequestError
from pytest_aorta.trials.loading import file_digest
from pytest_aorta.workflow.recipe import Recipe
from pytest_aorta.workspace.atomic import locked

_INDEX, _JOURNALS = "index.sqlite", "staged"

_VERSION = 2

_SCHEMA = f"""
CREATE TABLE completed (action, unit, outcome TEXT, key TEXT, PRIMARY KEY (action, unit)) WITHOUT ROWID;
CREATE TABLE outputs (action, unit, text, PRIMARY KEY (action, unit)) WITHOUT ROWID;
CREATE TABLE requests (key TEXT PRIMARY KEY, request TEXT) WITHOUT ROWID;
CREATE TABLE decided (action PRIMARY KEY, decision TEXT) WITHOUT ROWID;
CREATE TABLE folded (name PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE directories (name PRIMARY KEY, modified INTEGER, size INTEGER, value TEXT) WITHOUT ROWID;
CREATE TABLE of_file (value_file);
PRAGMA user_version = {_VERSION};
"""

#: Seconds that a process may have to wait for another one that writes.
_PATIENCE = 60.0

#: Directories that a thread lists at a time, and directories listed first to decide whether threads pay.
_AT_ONCE, _TRIED = 50, 20

#: Directories whose values are looked up one by one.
_FEW = 50

#: Blocking waits per directory above which threads pay.
_WAITS = 0.5

#: Bytes of a line of a journal; a longer one says nothing, and is not held in memory.
_LONGEST = 2**24

#: The outcome of a trial, as in its record, or of a command.
Outcome = Literal["ok", "workload_failed", "timeout", "infrastructure_failed", "completed", "failed"]

#: Outcome, and key of the request or command; the key is empty for products found on disk.
Completion = tuple[Outcome, str]

#: Action to unit to its completion; ``None`` where there is none any more.
Completions = dict[str, dict[str, Completion | None]]


class RequestDigests(BaseModel):
    """The request of a trial: a digest of its cell's request, and digests of source files by path."""

    model_config = ConfigDict(frozen=True)

    digest: str = ""
    sources: dict[str, str] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        text = json.dumps([self.digest, self.sources], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Decision(BaseModel):
    """Cells of an action that need no more trials, with reasons; ``asked``: see ``requests.asked_of``."""

    asked: str = ""
    cells: dict[str, str] = Field(default_factory=dict)


class Known(BaseModel):
    """Completions, requests, decisions and outputs; each line of a journal holds new ones."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    requests: dict[str, RequestDigests] = Field(default_factory=dict)
    completed: Completions = Field(default_factory=dict)
    decided: dict[str, Decision] = Field(default_factory=dict)
    #: Action to unit to the end of what a failed command has printed.
    outputs: dict[str, dict[str, str]] = Field(default_factory=dict)
    #: Journals that are in it, and are still there when a reader was killed.
    folded: list[str] = Field(default_factory=list)

    def add(self, new: Known, *, forgets: bool = True) -> None:
        """Merge newer knowledge, which replaces older entries of the same units.

        ``forgets``: drop units whose completion is gone; otherwise keep ``None`` for them.
        """
        self.requests.update(new.requests)
        for action, units in new.completed.items():
            own = self.completed.setdefault(action, {})
            for unit, completion in units.items():
                self.outputs.get(action, {}).pop(unit, None)
                if completion is None and forgets:
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
        request: RequestDigests | None = None,
        *,
        key: str = "",
        output: str = "",
    ) -> None:
        """Append the outcome of a unit; ``None`` revokes it.

        ``key``: of a completed command, see ``Project.key_of``. ``output``: last lines of a failed command.
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
        """Sync and close the file; readers may fold it into the index from now on."""
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


#: Time of modification in ns, size, and content of a value file.
_Value = tuple[int, int, str]


def _stored(name: str) -> str | bytes:
    """The form of a name in the index: bytes, where it is no valid text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape")
    return name


def _read(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


class Workspace:
    """Directories of a recipe's workspace with their values and completions: from disk, or ``from_cache``.

    ``only``: ignore all other directories. ``damaged``: unreadable files of the index, with the reason; their content
    is missing here.
    """

    def __init__(self, recipe: Recipe, only: Collection[str] | None = None) -> None:
        self._recipe = recipe
        self._only = only
        self._index = recipe.index
        self._folder, self._value_file = str(recipe.directories), str(recipe.workspace.value_file or "")
        self._names: list[str] | None = None
        self._digests: dict[str, str | None] = {}
        #: Values in the index (``None``: unread), new values to store, and parsed contents.
        self._values: dict[str, _Value] | None = {}
        self._new: dict[str, _Value] = {}
        self._parsed: dict[str, Any] = {}
        self._has_all = False
        self.damaged: dict[str, str] = {}
        self.known = Known()

    @classmethod
    def from_cache(cls, recipe: Recipe, only: Collection[str] | None = None) -> Self:
        """Read the index and the journals, and fold ended journals into the index where it is writable.

        Only a scan notices edited value files.
        """
        workspace = cls(recipe, only)
        workspace._values = None
        if workspace._journals():
            with locked(workspace._index):
                growing = workspace._fold()
            workspace._add(growing, growing=True)
        else:
            workspace._load()
        return workspace

    def _journals(self) -> list[Path]:
        try:
            folder = self._index / _JOURNALS
            return sorted(path for path in folder.iterdir() if path.suffix == ".jsonl" and path.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    @property
    def is_growing(self) -> bool:
        return not all(map(_has_ended, self._journals()))

    # The file

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """A consistent view of the index; ``None`` where it is absent or damaged, which is noted in ``damaged``."""
        file = self._index / _INDEX
        try:
            with file.open("rb") as opened:
                if not opened.read(16).startswith(b"SQLite format 3"):
                    raise sqlite3.DatabaseError
            # "rw": what a killed writer has left has to be undone.
            with contextlib.closing(_connected(file, "rw")) as connection:
                if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                    raise sqlite3.DatabaseError
                connection.execute("BEGIN")
                yield connection
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self.damaged[_INDEX] = f"cannot be read: {error.strerror}"
        except sqlite3.OperationalError as error:
            self.damaged[_INDEX] = f"cannot be read: {error}"
        except sqlite3.DatabaseError:
            self.damaged[_INDEX] = "is damaged, or of another version"
        yield None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction on the index, which is created if it is absent or damaged; raises ``OSError``."""
        file = self._index / _INDEX
        try:
            if _INDEX in self.damaged or not file.exists():
                self._index.mkdir(parents=True, exist_ok=True)
                temporary = self._index / f".{_INDEX}.{os.urandom(8).hex()}.tmp"
                try:
                    with contextlib.closing(_connected(temporary, "rwc")) as made:
                        made.executescript(_SCHEMA)
                    os.replace(temporary, file)
                finally:
                    temporary.unlink(missing_ok=True)
            with contextlib.closing(_connected(file, "rw")) as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise OSError(errno.EIO, str(error), str(file)) from None

    def _load(self) -> None:
        self.known = Known()
        with self._reading() as index:
            if index is not None:
                self._load_from(index)

    def _load_from(self, index: sqlite3.Connection) -> None:
        query = "SELECT unit, outcome, key FROM completed WHERE action = ?"
        if self._only is None:
            actions = [each for (each,) in index.execute("SELECT DISTINCT action FROM completed")]
            rows = {each: index.execute(query, (each,)).fetchall() for each in actions}
        else:
            names = [(action, _stored(name)) for action in self._recipe.by_name for name in self._only]
            rows = {}
            for action, name in names:
                rows.setdefault(action, []).extend(index.execute(f"{query} AND unit = ?", (action, name)))
        known = self.known
        known.completed = {_read(action): {_read(u): (o, k) for u, o, k in units} for action, units in rows.items()}
        for key, request in index.execute("SELECT key, request FROM requests"):
            known.requests[key] = RequestDigests.model_validate_json(request)
        for action, decision in index.execute("SELECT action, decision FROM decided"):
            known.decided[_read(action)] = Decision.model_validate_json(decision)
        for action, unit, text in index.execute("SELECT action, unit, text FROM outputs"):
            known.outputs.setdefault(_read(action), {})[_read(unit)] = _read(text)
        known.folded = [_read(name) for (name,) in index.execute("SELECT name FROM folded")]

    def _apply(self, index: sqlite3.Connection, new: Known) -> None:
        for action, units in new.completed.items():
            own = _stored(action)
            index.executemany("DELETE FROM outputs WHERE action = ? AND unit = ?", ((own, _stored(it)) for it in units))
            gone = [(own, _stored(unit)) for unit, each in units.items() if each is None]
            index.executemany("DELETE FROM completed WHERE action = ? AND unit = ?", gone)
            there = [(own, _stored(unit), *each) for unit, each in units.items() if each is not None]
            index.executemany("REPLACE INTO completed VALUES (?, ?, ?, ?)", there)
        for action, texts in new.outputs.items():
            rows = [(_stored(action), _stored(unit), _stored(text)) for unit, text in texts.items()]
            index.executemany("REPLACE INTO outputs VALUES (?, ?, ?)", rows)
        requests = [(key, each.model_dump_json()) for key, each in new.requests.items()]
        index.executemany("REPLACE INTO requests VALUES (?, ?)", requests)
        index.execute("DELETE FROM requests WHERE key NOT IN (SELECT key FROM completed)")
        for action in new.decided:
            decision = self.known.decided[action].model_dump_json()
            index.execute("REPLACE INTO decided VALUES (?, ?)", (_stored(action), decision))

    def _note_folded(self, index: sqlite3.Connection, journals: Iterable[Path]) -> None:
        index.execute("DELETE FROM folded")
        index.executemany("INSERT INTO folded VALUES (?)", ((_stored(path.name),) for path in journals))

    def _fold(self) -> list[Path]:
        """Read the index and fold ended journals into it; return the others."""
        self._load()
        journals = self._journals()
        ended = [path for path in journals if _has_ended(path)]
        new = self._add(ended)
        self.known.folded = [path.name for path in ended]
        if ended and not self.damaged:  # else they stay until a scan has found what is missing
            with contextlib.suppress(OSError):
                with self._writing() as index:
                    self._apply(index, new)
                    self._note_folded(index, ended)
                for path in ended:
                    path.unlink(missing_ok=True)
        return [path for path in journals if path not in ended]

    def _add(self, journals: Iterable[Path], *, growing: bool = False) -> Known:
        """Merge journals into ``known``; return what they added."""
        new = Known()
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
                                said = Known.model_validate(json.loads(line))
                                self.known.add(said)
                                new.add(said, forgets=False)
                        except (ValueError, RecursionError):
                            bad += 1
            except FileNotFoundError:  # folded by another reader in the meantime
                continue
            except OSError as error:
                self.damaged[f"{_JOURNALS}/{journal.name}"] = f"cannot be read: {error.strerror}"
            if bad and not growing:  # it is named when it has ended
                lines = f"{bad:,} line{'s' * (bad > 1)}"
                self.damaged[f"{_JOURNALS}/{journal.name}"] = f"has {lines} that cannot be read"
        return new

    def save(self) -> None:
        """Store values that were read, for later processes; completions of other processes stay."""
        if not self._new and not self._has_all:
            return
        with contextlib.suppress(OSError):
            self._index.mkdir(exist_ok=True)
            with locked(self._index):
                damaged = dict(self.damaged)
                with self._reading():
                    pass
                if _INDEX not in self.damaged:
                    with self._writing() as index:
                        self._write_values(index)
                self.damaged = damaged

    def _write_values(self, index: sqlite3.Connection) -> None:
        if [self._value_file] != [each for (each,) in index.execute("SELECT value_file FROM of_file")]:
            index.execute("DELETE FROM directories")
            index.execute("DELETE FROM of_file")
            index.execute("INSERT INTO of_file VALUES (?)", (self._value_file,))
        rows = ((_stored(name), *each) for name, each in self._new.items())
        index.executemany("REPLACE INTO directories VALUES (?, ?, ?, ?)", rows)
        if self._has_all:
            there = set(map(_stored, self.names))
            gone = [(name,) for (name,) in index.execute("SELECT name FROM directories") if name not in there]
            index.executemany("DELETE FROM directories WHERE name = ?", gone)
        self._values, self._new, self._has_all = {**(self._values or {}), **self._new}, {}, False

    def record(self, new: Known, is_gone: Callable[[str, str], bool] = lambda action, unit: False) -> tuple[int, int]:
        """Store the result of a search on disk; return how many units changed, and how many were forgotten.

        Changes since this object was read are newer than the search, and stay. ``is_gone``: whether to forget a unit
        of an action that the search did not find. Raises ``OSError``, and leaves the index as it was.
        """
        self._index.mkdir(parents=True, exist_ok=True)
        before = self.known.completed
        changes = Known(requests=new.requests)
        changed = removed = 0
        with locked(self._index):
            self._fold()
            now = self.known.completed
            for action in before.keys() | new.completed.keys():
                seen, known = new.completed.get(action, {}), before.get(action, {})
                latest = now.get(action, {})
                for unit, completion in seen.items():
                    if latest.get(unit) == known.get(unit) != completion:
                        changes.completed.setdefault(action, {})[unit] = completion
                        changed += 1
                for unit in known.keys() - seen.keys():
                    if latest.get(unit) == known[unit] and is_gone(action, unit):
                        changes.completed.setdefault(action, {})[unit] = None
                        removed += 1
            self.known.add(changes)
            if self.damaged:
                changes = self.known
            with self._writing() as index:
                self._apply(index, changes)
                self._note_folded(index, [path for path in self._journals() if path.name in self.known.folded])
                if self._recipe.workspace.value_file is not None:
                    self._write_values(index)
        self.damaged = {}
        return changed, removed

    def clean(self, *, completed: bool, directories: bool) -> None:
        with locked(self._index):
            self._fold()
            if completed:
                for journal in self._journals():
                    journal.unlink(missing_ok=True)
            if completed and directories:
                (self._index / _INDEX).unlink(missing_ok=True)
            elif (self._index / _INDEX).exists():
                tables = ["directories", "of_file"] if directories else []
                tables += ["completed", "requests", "decided", "outputs"] if completed else []
                with self._writing() as index:
                    for table in tables:
                        index.execute(f"DELETE FROM {table}")

    # Directories

    @property
    def names(self) -> list[str]:
        """The sorted names of directories: all folders but results of workloads and the index."""
        if self._names is None:
            without = {action.name for action in self._recipe.actions if action.is_matrix} | {self._index.name}
            folder = self._recipe.directories
            if self._only is not None:
                existing = (name for name in self._only if "/" not in name and os.path.isdir(folder / name))
                self._names = sorted({*existing} - without)
                return self._names
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
        if name not in self._parsed:
            if self._values is None and len(self._parsed) >= _FEW:
                self._values = self._known_values(self._only)
                # All at once: a third of the time that one by one takes. Those that were read meanwhile are newer.
                texts = ",".join(text for _, _, text in self._values.values())
                self._parsed = {**dict(zip(self._values, json.loads(f"[{texts}]"), strict=True)), **self._parsed}
                return self.value_of(name)
            known = self._known_values([name]) if self._values is None else self._values
            value = self._new.get(name) or known.get(name)
            if value is None:
                value = self._new[name] = self._read_value(name)
            self._parsed[name] = json.loads(value[2])
        return self._parsed[name]

    def _known_values(self, names: Collection[str] | None) -> dict[str, _Value]:
        with self._reading() as index:
            if index is None or [(self._value_file,)] != index.execute("SELECT value_file FROM of_file").fetchall():
                return {}
            query = "SELECT name, modified, size, value FROM directories"
            if names is None:
                rows = index.execute(query).fetchall()
            else:
                rows = [row for it in names for row in index.execute(f"{query} WHERE name = ?", (_stored(it),))]
            return {_read(name): (modified, size, value) for name, modified, size, value in rows}
        return {}

    def look(self, names: Sequence[str], threads: int) -> Iterator[tuple[str, Collection[str]]]:
        """List each directory once, and read changed values; yields the names in it.

        Uses threads where the first listings mostly wait, as on network file systems; elsewhere threads only get in
        each other's way.
        """
        from concurrent.futures import ThreadPoolExecutor  # which brings logging

        if self._values is None:
            self._values = self._known_values(self._only)
        earlier, reads = self._values, self._recipe.workspace.value_file is not None
        in_place = "/" not in self._value_file

        def look(chunk: Sequence[str]) -> list[tuple[str, Collection[str], _Value | None]]:
            looked_at: list[tuple[str, Collection[str], _Value | None]] = []
            for name in chunk:
                there: set[str] = set()
                known, changed = earlier.get(name), None
                try:
                    with os.scandir(f"{self._folder}/{name}") as entries:
                        for entry in entries:
                            there.add(entry.name)
                            if reads and in_place and known is not None and entry.name == self._value_file:
                                status = entry.stat()
                                if (status.st_mtime_ns, status.st_size) != known[:2]:
                                    known = None
                except OSError:
                    pass
                if reads and (known is None or not in_place):
                    changed = self._read_value(name, known)
                elif reads and self._value_file not in there:
                    changed = self._read_value(name)  # which says what is wrong
                looked_at.append((name, there, changed if changed is not known else None))
            return looked_at

        chunks = [names[start : start + _AT_ONCE] for start in range(_TRIED, len(names), _AT_ONCE)]
        before = _times_waited()
        first = look(names[:_TRIED])
        waits = _times_waited() - before > _WAITS * len(first)
        with ThreadPoolExecutor(threads) as pool:
            for chunk in chain([first], (pool.map if waits else map)(look, chunks)):
                for name, there, changed in chunk:
                    if changed is not None:
                        self._new[name] = changed
                        self._parsed.pop(name, None)
                    yield name, there
        self._has_all = reads and self._only is None and len(names) == len(self.names)

    def _read_value(self, name: str, earlier: _Value | None = None) -> _Value:
        path = f"{self._folder}/{name}/{self._value_file}"  # a Path each takes as long as to read the file
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # half the time of a file object
            try:
                status = os.fstat(fd)
                if earlier is not None and earlier[:2] == (status.st_mtime_ns, status.st_size):
                    return earlier
                content = os.read(fd, status.st_size + 1).decode()
            finally:
                os.close(fd)
            json.loads(content)
            return status.st_mtime_ns, status.st_size, content
        except OSError as error:
            raise RequestError(f"the value of directory {name!r} cannot be read: {error.strerror}: {path}") from None
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the value of directory {name!r} is not valid JSON: {error}: {path}") from None

    def have_changed(self, sources: Mapping[str, str]) -> bool:
        for path in sources.keys() - self._digests.keys():
            self._digests[path] = file_digest(Path(path))
        return any(self._digests[path] != digest for path, digest in sources.items())


def _times_waited() -> int:
    """How often this thread has blocked (voluntary context switches), which a busy machine does not change."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _connected(file: Path, mode: str) -> sqlite3.Connection:
    """Connect to a file of SQLite, without SQLite's locks on file systems that have none."""
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(file))}?mode={mode}", uri=True, timeout=_PATIENCE, isolation_level=None
        )
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:
        if "locking protocol" not in str(error) and "I/O" not in str(error):  # what others hold is waited for
            raise
        connection = sqlite3.connect(f"file:{quote(str(file))}?mode={mode}&nolock=1", uri=True, isolation_level=None)
    return connection
