"""Which names a shared object, or a Python source, holds as strings."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pytest_aorta.probe.elf_sections import Range, StringRanges, string_ranges

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
