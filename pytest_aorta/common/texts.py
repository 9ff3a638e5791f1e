"""Texts of exceptions, numbers and names, printable texts, and the end of a file."""

from __future__ import annotations

import hashlib
import os
import re
import traceback
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path

#: Characters of a message, and of a traceback, that are kept.
_LIMIT = 2**15


def describe_exception(error: BaseException) -> dict[str, str]:
    """``type``, ``message`` and ``traceback``; no local variables, for those may hold secrets."""
    try:
        message = str.__str__(str(error))  # which may be of a subclass, with methods of its own
    except BaseException as inner:
        message = f"<{type(error).__name__}.__str__ raised {type(inner).__name__}>"
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:
        text = "".join(traceback.format_tb(error.__traceback__))
    return {"type": type(error).__qualname__, "message": _bounded(message), "traceback": _bounded(text)}


def _bounded(text: str) -> str:
    if len(text) <= _LIMIT:
        return text
    half = _LIMIT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


#: ANSI escape sequences: colours, titles, moves of the cursor (ECMA-48, 5.4 and 5.6).
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def utc_now() -> str:
    """This moment in ISO 8601 with milliseconds, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def printable(text: str) -> str:
    """A text whose characters are all harmless to a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def one_line(text: str) -> str:
    """The same without line breaks and runs of spaces, for a row of a table or a list."""
    return " ".join(printable(text).split())


#: Libraries that are called for others, and the interpreter, which calls all; and functions by which a process ends.
_HELPS = re.compile(
    r"(lib(c|stdc\+\+|gcc_s|pthread|ffi|[at]san|ubsan)[.-]|ld-linux|(lib)?python3?[.\d]*|_ctypes\b|linux-vdso)"
)
_ENDS = re.compile(
    r"_*(GI_)?_*(raise|abort|pthread_kill|gsignal|libc_message|libc_fatal|malloc_printerr|restore_rt)"
    r"|faulthandler|_Py_Dump"
)


def native_function(frames: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """The C function that is at fault, and the file name of its library; empty texts if none has a name.

    It is the first outside of the C library and the interpreter, else the innermost that does not end the process.
    ``frames``: name and library of each, innermost first.
    """
    innermost = ("", "")
    for name, library in frames:
        name = name.replace("(anonymous namespace)::", "").partition("(")[0]
        file = library.rpartition("/")[2]
        if not re.match(r"[A-Za-z_~]", name) or _ENDS.match(name):
            continue
        name = re.sub(r"^(__GI_)?_*", "", name) if file.startswith("libc.") else name
        if file and not _HELPS.match(file):  # a program is the interpreter
            return name, file
        innermost = innermost if innermost[0] else (name, file)
    return innermost


def format_ranges(numbers: Iterable[int]) -> str:
    """``{0, 1, 2, 5}`` as ``0-2,5``."""
    parts: list[str] = []
    first = last = None
    for number in sorted(numbers):
        if last is None or number != last + 1:
            first = number
            parts.append("")
        last = number
        parts[-1] = str(first) if first == last else f"{first}-{last}"
    return ",".join(parts)


def parse_ranges(text: str) -> list[range]:
    """``0-2,5`` as ``[range(0, 3), range(5, 6)]``: not joined; raises ``ValueError`` for anything else."""
    ranges = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError(f"{part.strip()[:100]!r} is neither a number nor a range")
        ranges.append(range(first, last + 1))
    return ranges


def read_tail(path: Path, size: int) -> str:
    """The last ``size`` bytes of a file as text; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def first_names(names: Sequence[str], most: int) -> list[str]:
    """The first ``most`` of ``names``; where there are more, an entry such as ``2 more`` besides."""
    more = len(names) - most
    return [*names[:most], *([f"{more} more"] if more > 0 else [])]


_UNSAFE = re.compile(r"[^A-Za-z0-9_.+=-]+")

#: Longest name; file systems allow 255 bytes for a component, and suffixes are added.
_NAME_LIMIT = 120

#: Characters of the digest that keeps two changed names apart.
_DIGEST = 8


def join_names(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def counted(number: int, what: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def duration_text(seconds: float) -> str:
    """``1h30m``."""
    parts, rest = [], seconds
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if rest >= length:
            number, rest = divmod(rest, length)
            parts.append(f"{number:g}{unit}")
    return "".join(parts) + (f"{rest:g}s" if rest or not parts else "")


#: Beginning of the name of an environment that is given by its packages.
INLINE_PREFIX = "uv:"

#: And one that is a commit of a git repository, in a working tree of its own.
COMMIT_PREFIX = "commit:"


def environment_label(name: str) -> str:
    """The name of an environment in names of cells: ``numpy==1.26+scipy`` for ``uv:numpy==1.26 scipy``."""
    if name.startswith(COMMIT_PREFIX):
        return f"commit-{name.removeprefix(COMMIT_PREFIX).partition('@')[0]}"
    if not name.startswith(INLINE_PREFIX):
        return name
    return "+".join(os.path.basename(word.rstrip("/")) for word in name.removeprefix(INLINE_PREFIX).split())


@lru_cache(maxsize=4096)  # those of a plan are asked for again and again
def identifier(name: str) -> str:
    """``name`` itself where it is short ASCII without separators, else a readable form of it with a digest.

    The result has no ``/``, ``:``, ``[``, ``]``, space or control character, is neither empty nor ``.`` nor ``..``,
    does not start with a dot or a dash, and is different for different names.
    """
    safe = _UNSAFE.sub("_", name)
    safe = re.sub(r"^[.-]", "_", safe)[:_NAME_LIMIT]
    # "~" is not a safe character, so a changed name never equals one that was safe.
    if safe == name != "":
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{safe}~{digest}"
