"""Where the strings of an executable or a shared object are, by its section headers (System V ABI, chapter 4)."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from pytest_aorta.probe.plain import words

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
