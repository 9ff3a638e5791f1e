"""What stays of a failure's message from trial to trial: its words, without numbers, addresses, paths and ids."""

from __future__ import annotations

import re

#: Characters of a line that are looked at.
_LOOKED_AT = 2000

#: Longest text that is returned, in characters.
LONGEST = 100

#: ANSI escape sequences: colours, titles, moves of the cursor (ECMA-48, 5.4 and 5.6).
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")

#: Words whose number says which one of several equal things it was. In other words it is a part of the name: conv2d.
_NUMBERED = (
    r"rank|ranks|gpu|cuda|hip|worker|node|host|thread|pid|tid|port|slot|dev|device|step|iter|iteration|epoch|trial|"
    r"attempt|process|proc|card|renderd|gw|fd"
)

_REPLACED = [
    (re.compile(pattern, re.IGNORECASE), by)
    for pattern, by in (
        (r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>|,;()\[\]{}]+", "<url>"),
        # absolute, relative to . .. or ~, of Windows, and relative ones of a file with an ending
        (r"(?<![\w./>~-])(?:~|\.{1,2})?/[^\s'\"<>|:,;()\[\]{}=]+", "<path>"),
        (r"(?<![\w/])[a-z]:\\[^\s'\"<>|:,;()\[\]{}]+", "<path>"),
        (r"(?<![\w./>~-])(?:[\w.+-]+/)+[\w.+-]*\.[a-z]\w{0,7}\b(?!/)", "<path>"),
        (r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", "#"),
        (r"\btmp[a-z0-9_]{6,}\b", "#"),
        (r"(?<![\w:])(?=[0-9a-f:]*[0-9])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{1,4}(?![\w:])", "#"),  # times, IPv6, MAC
        (r"\b0x[0-9a-f]+\b", "#"),
        (r"(?<![\w.])[-+]?\d+(?:\.\d+)?e[-+]?\d+(?!\w)", "#"),
        (r"(?<![\w])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{8,}(?![\w])", "#"),
        (rf"(?<![a-z0-9])({_NUMBERED})\d+(?![a-z0-9])", r"\1#"),
        (r"\b\d{4}-\d\d-\d\d(?:[t ](?=[\d#]))?", "#"),
        (r"(?<![a-z0-9.])[-+]?\d[\d_]*(?:\.\d+)*(?:e[-+]?\d+)?(?![\d])(?:\s?(?:[kmgt]i?b|bytes?)\b)?", "#"),
        (r"(?<=#)(?:x\d+)+", ""),
        (r"[-+]?#(?:[\s,:.x_-]*#)+", "#"),
        (r"#,(?=\))", "#"),
    )
]


def words_of(message: str) -> str:
    """One line of a message that is the same for every trial that fails for this reason.

    It is the first line with anything on it; of a message that contains a traceback, as that of an exception in a
    worker of a ``DataLoader``, the last. Numbers, addresses, ids in hexadecimal digits and names of temporary files
    become ``#``, and so do lists of them, whatever their length; paths become ``<path>``. Digits that belong to a name
    stay: ``float16``. At most ``LONGEST`` characters.
    """
    line = _line(message)
    before = None
    while before != line:  # a replacement can bring two others side by side
        before = line
        for pattern, by in _REPLACED:
            line = pattern.sub(by, line)
    return bounded(line)


def shown(text: str) -> str:
    """A text on one line, without what a terminal takes for a command."""
    text = _ESCAPES.sub("", text)
    return " ".join(
        "".join(char if char.isprintable() or char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text).split()
    )


def bounded(text: str, longest: int = LONGEST) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def _line(message: str) -> str:
    lines = [line for line in message.splitlines() if line.strip()]
    if not lines:
        return ""
    at = -1 if any(line.endswith("Traceback (most recent call last):") for line in lines) else 0
    return shown(lines[at][:_LOOKED_AT])
