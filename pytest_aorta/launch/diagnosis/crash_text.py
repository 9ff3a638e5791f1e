"""What a process has written to its standard error as it crashed: its last words, and faulthandler's stacks."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_aorta.common.file_tail import read_tail

#: Bytes read from the end of a log.
_TAIL = 2**16

#: Characters that are kept.
_KEPT = 2**15

#: The first line of faulthandler's.
_FATAL = re.compile(r"^(?:\[rank\d+\]: ?)?Fatal Python error: ", re.MULTILINE)

#: Lines that explain an abort: of the C++ runtime, ``assert`` and the allocator of glibc, and the runtime of ROCm.
_LAST_WORDS = re.compile(
    r"^.*(?:terminate called |  what\(\):|Assertion [`'].+' failed|\*\*\* .+ \*\*\*"
    r"|HSA_STATUS_|Memory access fault by GPU).*$"
    r"|^(?:free|malloc|realloc|munmap_chunk|double free|corrupted|malloc_consolidate)\b.*$",
    re.MULTILINE,
)

#: Of the lines before the stacks, those that are searched for such words.
_LINES_BEFORE = 60


def crash_text(stderr: Path | None) -> str | None:
    """The end of a log, from the words that explain the crash on; ``None`` where there are neither these nor stacks."""
    if stderr is None:
        return None
    text = read_tail(stderr, _TAIL)
    fatal = max((found.start() for found in _FATAL.finditer(text)), default=None)
    recent = "\n".join(text[:fatal].splitlines()[-_LINES_BEFORE:])
    words = [found[0] for found in _LAST_WORDS.finditer(recent)]
    if fatal is None and not words:
        return None
    stacks = [] if fatal is None else [text[fatal:].rstrip()]
    return "\n".join([*words, *stacks])[:_KEPT]
