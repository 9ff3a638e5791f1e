"""Whether anything that a process has loaded or imported names a variable: what nothing names, nothing has read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.guard import printable, words
from pytest_aorta.probe.loaded import file_identity, file_of, imported_since, mapped_files
from pytest_aorta.probe.process import Children, children_now, had_children_since

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts
    from pytest_aorta.probe.loaded import MappedBefore, ModuleCount


Range = tuple[int, int]
"""Where a range of a file starts and how long it is, in bytes."""

_PROGBITS = 1
_ALLOCATED, _EXECUTABLE = 0x2, 0x4
_X86_64 = 62

#: Allocated and no code, but tables of addresses, or code for a GPU.
_NO_STRINGS = words(
    """
    .eh_frame .eh_frame_hdr .gcc_except_table .got .got.plt .interp
    .nv_fatbin .nvFatBinSegment __nv_module_id __nv_relfatbin .hip_fatbin .hipFatBinSegment
    """
)
_GO = ".go.buildinfo"

#: (file header from e_machine, section header) of 64 and 32 bits, without the byte order.
_LAYOUTS = {2: ("HIQQQIHHHHHH", "IIQQQQIIQQ"), 1: ("HIIIIIHHHHHH", "IIIIIIIIII")}
_MACHINE_AT = 18


class NotAnObject(ValueError):
    """A file is no ELF file, or a damaged one."""


@dataclass(frozen=True)
class StringRanges:
    """Parts of a file in which names can be.

    Attributes:
        data: constants and initialised variables; the whole file where nothing says which part that is.
        code: code for x86-64, which may hold short strings as operands; empty on other machines.
        terminated: whether each string is ended by a zero; Go writes them one after the other.
    """

    data: tuple[Range, ...]
    code: tuple[Range, ...] = ()
    terminated: bool = True


def string_ranges(file: int) -> StringRanges:
    """Of the ELF file that this descriptor reads.

    Raises:
        NotAnObject: it is none.
        OSError: it cannot be read.
    """
    size = os.fstat(file).st_size
    ident = os.pread(file, 16, 0)
    if len(ident) < 16 or ident[:4] != b"\x7fELF" or ident[4] not in _LAYOUTS or ident[5] not in (1, 2):
        raise NotAnObject("no ELF file")
    order, (header, entry) = "<" if ident[5] == 1 else ">", _LAYOUTS[ident[4]]
    fields = _unpacked(file, order + header, _MACHINE_AT)
    machine, offset, entry_size, count, names_at = fields[0], fields[4], fields[9], fields[10], fields[11]
    step = struct.calcsize(order + entry)
    if offset == 0 or count == 0 or entry_size != step or offset + count * entry_size > size:
        everything = ((0, size),)  # stripped of its section headers
        return StringRanges(everything, everything if machine == _X86_64 else ())
    sections = list(struct.iter_unpack(order + entry, os.pread(file, count * step, offset)))
    names = _names(file, sections, names_at, size)
    data: list[Range] = []
    code: list[Range] = []
    for name, (_, kind, flags, _, start, length, *_rest) in zip(names, sections, strict=True):
        if kind != _PROGBITS or not flags & _ALLOCATED or name in _NO_STRINGS or start + length > size:
            continue
        (code if flags & _EXECUTABLE else data).append((start, length))
    return StringRanges(tuple(data), tuple(code) if machine == _X86_64 else (), terminated=_GO not in names)


def _unpacked(file: int, layout: str, offset: int) -> tuple[int, ...]:
    data = os.pread(file, struct.calcsize(layout), offset)
    if len(data) < struct.calcsize(layout):
        raise NotAnObject("ends before its headers do")
    return struct.unpack(layout, data)


def _names(file: int, sections: list[tuple[int, ...]], names_at: int, size: int) -> list[str]:
    """Empty for each section of a file that has no table of their names."""
    table = b""
    if 0 < names_at < len(sections) and sections[names_at][4] + sections[names_at][5] <= size:
        table = os.pread(file, sections[names_at][5], sections[names_at][4])
    return [table[start : max(start, table.find(b"\0", start))].decode("latin-1") for start, *_ in sections]


_CHUNK = 8 * 2**20

#: Bytes of code, in one file, beyond which operands are not searched: it would take longer than all constants.
_MOST_CODE = 64 * 2**20

#: What is left of a string that a compiler has made operands of: ``movabs`` takes 8 bytes, a register of SSE 16.
_OPERAND, _VECTOR = 8, 16
#: Longest string that std::string of libstdc++ keeps in itself, so that code can put it there.
_IN_PLACE = 15

#: Characters of names, each as one byte.
_WORD = frozenset(bytes([byte]) for byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")

#: Bytes that are looked at before a word: the opcode of ``movabs``.
_BEFORE = 2

#: In the constants of every program with code of Rust's standard library: a path of its sources.
_RUST = b"/rustc/"


class OutOfTime(Exception):
    """The time for a search is over."""


class Deadline:
    """Raises ``OutOfTime`` when checked after ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise ``OutOfTime``, or do nothing."""
        if time.monotonic() > self._end:
            raise OutOfTime


def names_in_object(path: str, names: Collection[str], deadline: Deadline) -> set[str]:
    """Those of the ``names`` that an executable or shared object holds, or may hold.

    A name counts where no letter, digit or underscore follows it. One may precede it if a zero follows: of two strings
    of which one is the end of the other, linkers keep only the longer one. Besides,

    - as an operand of x86-64 code (up to 15 characters), or as a vector of its first 16: so GCC and Clang copy a
      constant into a ``std::string``;
    - where its parts before and behind the first underscore are strings of their own, of which oneDNN, for instance,
      puts it together;
    - anywhere in a program of Rust or Go, whose strings have no end.

    Raises:
        NotAnObject: it is none.
        OSError: it cannot be read.
        OutOfTime: it took too long.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _search(file, string_ranges(file), names, deadline)
    finally:
        os.close(file)


@dataclass(frozen=True)
class _Chunk:
    """A part of a file that starts at ``offset``; words count that begin at ``first`` or later and before ``end``.

    Of these, the bytes before and behind are there as well, unless the range ends there.
    """

    data: bytes
    offset: int
    first: int
    end: int

    def occurrences(self, word: bytes) -> Iterator[int]:
        """Where ``word`` begins."""
        at = self.data.find(word, self.first)
        while 0 <= at < self.end:
            yield at
            at = self.data.find(word, at + 1)

    def has_whole(self, word: bytes) -> bool:
        """Whether ``word`` stands there as a string, or as a word of one."""
        for at in self.occurrences(word):
            after = self.data[at + len(word) : at + len(word) + 1]
            if after in (b"", b"\0") or (after not in _WORD and self.data[at - 1 : at] not in _WORD):
                return True
        return False

    def has_vector(self, word: bytes) -> bool:
        """Whether the first bytes of ``word`` lie where a vector is loaded from."""
        return len(word) >= _VECTOR and any(
            (self.offset + at) % _VECTOR == 0 for at in self.occurrences(word[:_VECTOR])
        )

    def has_operand(self, word: bytes) -> bool:
        """Whether the first bytes of ``word`` follow ``movabs`` to a register (REX.W with B, B8 + register)."""
        data = self.data
        return any(
            at >= 2 and data[at - 2] in (0x48, 0x49) and 0xB8 <= data[at - 1] <= 0xBF
            for at in self.occurrences(word[:_OPERAND])
        )


def _chunks(file: int, ranges: tuple[Range, ...], longest: int, deadline: Deadline) -> Iterator[_Chunk]:
    for start, length in ranges:
        for at in range(start, start + length, _CHUNK):
            deadline.check()
            begin = max(start, at - _BEFORE)
            end = min(start + length, at + _CHUNK + longest + 1)
            data = os.pread(file, end - begin, begin)
            yield _Chunk(data, begin, at - begin, at - begin + _CHUNK)


def _search(file: int, ranges: StringRanges, names: Collection[str], deadline: Deadline) -> set[str]:
    left = {name: os.fsencode(name) for name in names}
    longest = max([len(_RUST), *map(len, left.values())])
    found: set[str] = set()
    anywhere: set[str] = set()
    beginnings: set[str] = set()
    ends: set[str] = set()
    terminated = ranges.terminated
    for chunk in _chunks(file, ranges.data, longest, deadline):
        terminated = terminated and _RUST not in chunk.data
        for name, word in list(left.items()):
            if chunk.has_whole(word) or chunk.has_vector(word):
                found.add(name)
                del left[name]
            elif word in chunk.data:
                anywhere.add(name)
            for parts, part in zip((beginnings, ends), _parts(word), strict=True):
                if name not in parts and chunk.has_whole(part):
                    parts.add(name)
    found |= beginnings & ends
    if not terminated:
        found |= anywhere
    if sum(length for _, length in ranges.code) <= _MOST_CODE:
        short = {name: word for name, word in left.items() if _OPERAND <= len(word) <= _IN_PLACE}
        for chunk in _chunks(file, ranges.code if short else (), longest, deadline):
            found |= {name for name, word in short.items() if chunk.has_operand(word)}
    return found


def _parts(word: bytes) -> tuple[bytes, bytes]:
    """Of ``ONEDNN_MAX_CPU_ISA``, ``ONEDNN_`` and the rest; the word itself for both where it has no such parts."""
    before, underscore, rest = word.partition(b"_")
    return (before + underscore, rest) if before and rest else (word, word)


def names_in_source(source: bytes, names: Collection[str]) -> set[str]:
    """Those of the ``names`` that stand in a source, also in a comment, and not inside of longer names."""
    return {name for name in names if _stands_in(source, os.fsencode(name))}


def names_in_bytecode(code: bytes, names: Collection[str]) -> set[str]:
    """Those of the ``names`` that stand in a ``.pyc`` file, which marks no end of a string."""
    return {name for name in names if os.fsencode(name) in code}


def _stands_in(source: bytes, word: bytes) -> bool:
    at = source.find(word)
    while at >= 0:
        if source[at - 1 : at] not in _WORD and source[at + len(word) : at + len(word) + 1] not in _WORD:
            return True
        at = source.find(word, at + 1)
    return False


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


#: Seconds that a search may take, once per set of files and names.
PATIENCE = 3.0

#: Of each variable, the files or modules that are recorded by name.
_MOST_LABELS = 4

#: Seconds from which the answer about a single shared object is kept; the others are searched as fast as it is read.
_WORTH_KEEPING = 0.005

_OWN = f"{Path(__file__).parents[1]}{os.sep}"

#: The dynamic loader recognises these by their end alone, so a search would find some of them only.
_OF_THE_LOADER = re.compile("LD_")

Identity = tuple[int, ...]

Answer = Entry
"""By name of a variable, labels of what names it; under the empty name, of what could not be searched."""

_UNSEARCHED = ""


@dataclass(frozen=True)
class ImportedBefore:
    """The sources that were imported before a fork.

    Attributes:
        key: stands for the identities of all of them.
        modules: the count of modules at that time.
    """

    key: str
    modules: ModuleCount


def imported_before_forks(modules: ModuleCount) -> ImportedBefore:
    """What is imported now, for the forks of this process."""
    return ImportedBefore(_key_of(_sources(list(sys.modules))), modules)


def named_variables(
    names: Collection[str],
    mapped: MappedBefore | None = None,
    imported: ImportedBefore | None = None,
    seconds: float = PATIENCE,
) -> Facts:
    """Which shared objects and imported sources of this process hold each of these names.

    ``by``: for each name the ``count`` of these files, and ``first``, some of them: libraries, then modules.
    ``unsearched``: files that could not be read, if there are any. ``note``: why nothing is known, instead of these.

    Searched are the executable, all shared objects that are mapped now, as ``names_in_object`` does, and the sources of
    the imported modules, except those of this package. What was found is kept in the user's cache, by the identity of
    the files, so that a trial of a cell pays for what it has loaded and imported itself.

    Args:
        names: of variables.
        mapped: the objects that were mapped before a fork, if these are still all.
        imported: the sources that were imported before a fork.
        seconds: that it may take; what was found until then is kept for the next time.
    """
    cache = open_cache()
    if cache is None:
        return {"note": "not searched: there is no folder to keep the answers in; XDG_CACHE_HOME may name one"}
    search = _Search(sorted(set(names)), cache, Deadline(seconds))
    try:
        answers = [search.objects(mapped), *search.sources(imported)]
    except OutOfTime:
        return {"note": f"not searched: it would have taken longer than {seconds:.1f} s"}
    found: Facts = {"by": {name: _shown(name, answers) for name in search.names}}
    unsearched = sorted({label for answer in answers for label in answer.get(_UNSEARCHED, [])})
    return {**found, "unsearched": unsearched[:_MOST_LABELS]} if unsearched else found


def _shown(name: str, answers: Iterable[Answer]) -> Facts:
    labels = [label for answer in answers for label in answer.get(name, [])]
    if not labels and _OF_THE_LOADER.match(name):
        labels = ["the dynamic loader"]
    return {"count": len(labels), "first": labels[:_MOST_LABELS]}


class _Search:
    def __init__(self, names: list[str], cache: SearchCache, deadline: Deadline) -> None:
        self.names = names
        self._cache = cache
        self._deadline = deadline

    def objects(self, mapped: MappedBefore | None) -> Answer:
        files = mapped_files() if mapped is None else mapped.files
        key = cache_key("objects", list(files.items()), self.names)
        kept = self._cache.read(key)
        return self._keep(key, self._search_objects(files)) if kept is None else kept

    def sources(self, imported: ImportedBefore | None) -> list[Answer]:
        later = None if imported is None else imported_since(imported.modules)
        if imported is None or later is None:
            return [self._answer_sources(_sources(list(sys.modules)))]
        key = cache_key("sources", imported.key, self.names)
        first = self._cache.read(key)
        if first is None:
            earlier = list(sys.modules)[: imported.modules.size]
            first = self._keep(key, self._search_sources(_sources(earlier)))
        return [first, self._answer_sources(_sources(later))] if later else [first]

    def _answer_sources(self, files: Mapping[str, tuple[str, Identity]]) -> Answer:
        key = cache_key("sources", _key_of(files), self.names)
        kept = self._cache.read(key)
        return self._keep(key, self._search_sources(files)) if kept is None else kept

    def _keep(self, key: str, answer: Answer) -> Answer:
        self._cache.write(key, answer)
        return answer

    def _search_objects(self, files: Mapping[str, Identity]) -> Answer:
        answer: Answer = {}
        for path, identity in files.items():
            label = printable(path.rpartition("/")[2])
            try:
                found = self._search_object(path, identity)
            except (OSError, NotAnObject):
                answer.setdefault(_UNSEARCHED, []).append(label)
                continue
            for name in sorted(found):
                answer.setdefault(name, []).append(label)
        return answer

    def _search_object(self, path: str, identity: Identity) -> set[str]:
        key = cache_key("object", path, identity)
        kept = self._cache.read(key) or {}
        searched, found = set(kept.get("searched", [])), set(kept.get("found", []))
        left = [name for name in self.names if name not in searched]
        start = time.monotonic()
        if left:
            found |= names_in_object(path, left, self._deadline)
            if file_identity(path) != identity:
                raise OSError(f"{path} is another file than the one that was loaded")
        if time.monotonic() - start > _WORTH_KEEPING:
            self._cache.write(key, {"searched": sorted(searched | set(left)), "found": sorted(found)})
        return found.intersection(self.names)

    def _search_sources(self, files: Mapping[str, tuple[str, Identity]]) -> Answer:
        answer: Answer = {}
        for path, (module, _) in files.items():
            self._deadline.check()
            try:
                content = Path(path).read_bytes()
            except OSError:
                answer.setdefault(_UNSEARCHED, []).append(module)
                continue
            find = names_in_bytecode if path.endswith(".pyc") else names_in_source
            for name in sorted(find(content, self.names)):
                answer.setdefault(name, []).append(module)
        return answer


def _sources(names: Iterable[str]) -> dict[str, tuple[str, Identity]]:
    """Module and identity of each source among the modules of these names, by path."""
    found: dict[str, tuple[str, Identity]] = {}
    for name in names:
        path = file_of(sys.modules.get(name))
        if path is not None and path not in found and path.endswith((".py", ".pyc")) and not path.startswith(_OWN):
            found[path] = printable(name), file_identity(path)
    return found


def _key_of(files: Mapping[str, tuple[str, Identity]]) -> str:
    return cache_key([f"{path}\0{identity}" for path, (_, identity) in files.items()])


#: Of the time that a trial has left, the share that a search may take.
_SHARE = 0.25


@dataclass
class Watch:
    """Variables, and the state of the process before the workload's code ran.

    Attributes:
        names: of the variables.
        children: at that time.
        had_children: whether there have been any in an import before that.
        seconds: that the search may take.
    """

    names: Collection[str]
    children: Children
    had_children: bool = False
    seconds: float = PATIENCE

    @classmethod
    def begin(cls, names: Collection[str], had_children: bool = False) -> Watch:
        """From now on."""
        return cls(names, children_now(), had_children)

    def limit(self, timeout: float | None, stall_timeout: float | None, spent: float) -> None:
        """Leave most of what is left until the deadline, or until a stall would be noticed, to the cleanup. Seconds."""
        left = [] if timeout is None else [timeout - spent]
        left += [] if stall_timeout is None else [stall_timeout]
        self.seconds = min([PATIENCE, *(seconds * _SHARE for seconds in left)])

    def look(self, mapped: MappedBefore | None, imported: ImportedBefore | None) -> Facts:
        """What ``named_variables`` finds now; ``subprocesses``: whether the process has had child processes."""
        subprocesses = self.had_children or had_children_since(self.children)
        return {**named_variables(self.names, mapped, imported, self.seconds), "subprocesses": subprocesses}
