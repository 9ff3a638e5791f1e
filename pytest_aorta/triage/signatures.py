"""Signatures of failures: a message without the numbers, addresses, paths and ids that differ from trial to trial."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pytest_aorta.common.texts import ESCAPES, native_function, one_line
from pytest_aorta.probe.health.meaning import after
from pytest_aorta.trials.records import CONTRADICTED
from pytest_aorta.trials.tracebacks import HEADING, Frame, exceptions_in, failed_frames, native_frames, own_frames

#: Characters of a line that are looked at.
_LOOKED_AT = 2000

#: Longest text that is returned, in characters.
LONGEST = 160

#: Words whose number counts equal things. In any other word the number is a part of the name: conv2d.
_NUMBERED = (
    r"rank|ranks|gpu|cuda|hip|worker|node|host|thread|pid|tid|port|slot|dev|device|step|iter|iteration|epoch|trial|"
    r"attempt|process|proc|card|renderd|gw|fd|layer|layers|block|blocks|expert|bucket|shard|batch|core|cpu|queue"
)

#: Prefixes of loggers: torchrun's rank, times, glog's severity and place, the kernel and its journal.
_BEFORE = re.compile(
    r"\A(?:\s*(?:"
    r"\[(?:rank\s?|default)?\d+\]:(?=\s|\[)"
    r"|\[\s*\d+\.\d+\](?=\s)"
    r"|\[?(?:(?:mon|tue|wed|thu|fri|sat|sun) )?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec) +\d\d? "
    r"(?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d+)?(?: \d{4})?\]?(?: [\w.-]+ kernel:)?"
    r"|\[?\d{4}-\d\d-\d\d[t ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:z|[+-]\d\d:?\d\d)?\]?:?(?: [\w.-]+ kernel:)?"
    r"|\[?[iwef]\d{3,8} \d\d:\d\d:\d\d\.\d+(?: +\d+)? [\w./-]+:\d+\]"
    r"|kernel:(?=\s)"
    r"|(?:error|warning|critical):[\w.]+:"  # of Python's logging
    r")\s*)+",
    re.IGNORECASE,
)

#: The name of a host, after a word that says it is one; it has a digit, which differs from trial to trial.
_HOST = r"(?=[a-z.-]*\d)[a-z\d](?:[\w.-]*[a-z\d])?"

#: Messages of libraries that say one failure in several ways, or with details that differ from trial to trial.
_SAID = [
    (re.compile(pattern, re.IGNORECASE), by)
    for pattern, by in (
        # of NCCL's log: host, process, thread, device
        (r"^[\w.-]+:\d+:\d+ \[\d+\] (?=\S+:\d+ nccl warn|nccl )", ""),
        (r"^[\w.-]+: (?=test nccl failure)", ""),
        # of UCX's and Open MPI's: host, process, thread
        (r"^\[(?![^:]*\.(?:cc?|cpp|cuh?|h|hpp|py):)[\w.-]+(?::\d+)+\] +", ""),
        (r"(?<= with status=)(\d+) opcode=\d+ len=\d+ vendor err (\d+).*", r"\1 vendor err \2"),
        (r"^\[PG [^\]]*\] ", ""),
        (r"^\[rank \d+\]:? ", ""),
        (r"^(?:Process group |NCCL )?watchdog thread terminated with exception: ", ""),
        (r"^NCCL error(?: in: [^,]+,|(?: \d+)?:) ", "NCCL: "),
        (r" - please report this issue to the NCCL developers", ""),
        (r"\bXid \(PCI:[^)]*\): (\d+)(?:, (?:pid=|name=|Ch )[^,]*)*", r"Xid \1"),
        (r" \(run with NCCL_DEBUG=\w+ for details\)|, NCCL version [\w.+-]+", ""),
        # the kernel does not always know the reason, and not always the same
        (r"(?<=memory access fault by gpu) node-\d+ .*", ""),
        (r"(?<=out of memory: killed process )\d+ (\([^)]*\)).*", r"\1"),
        # the name of a status says what has failed; what stands around it depends on who says it, and on the version
        (r"^.*?(?<![A-Za-z])((?-i:[A-Z]+_STATUS_[A-Z_]+[A-Z])).*", r"\1"),
        (r"(?<=resource_exhausted: )(?:out of memory|failed to allocate).*", "out of memory"),
        # where glibc meets a damaged heap is chance
        (
            r"^(?:(?:free|[mc]alloc|realloc|munmap_chunk|malloc_consolidate)\(\): |double free or corruption|corrupted "
            r"(?:size vs|double-linked)).*",
            "heap corruption",
        ),
        # what there was beside it depends on the version, and on what else runs
        (r"(?<=out of memory\. tried to allocate )[\d.]+ \w+.*", "#"),
        (r"^\*\*\* (?:Error in [`'][^`']*'|glibc detected \*\*\* [^:]+): (.*?)(?:: 0x[0-9a-f]+)? \*\*\*.*", r"\1"),
    )
]

#: What NCCL and RCCL say of their last error, in a line of its own.
_LAST_ERROR = re.compile(r"^Last error:[ ]*\n?(\S[^\n]*)$", re.MULTILINE)

#: Errors of a GPU that any later call may report: the place of that call says nothing.
_ELSEWHERE = re.compile(
    r"\b(?:CUDA|HIP) (?:error|runtime error \(\d+\) ): "
    r"(?:device-side assert|an? (?:illegal|misaligned|invalid program counter)|misaligned"
    r"|unspecified launch failure|the launch timed out|uncorrectable ECC|hardware stack error)",
    re.IGNORECASE,
)

#: Numbers that say what has failed.
_CODES = re.compile(
    r"\bxid:? \d+|\b(?:cuda|hip|nccl|hsa|driver|runtime) (?:error|failure):? \(?\d+"
    r"|\b(?:error|status|exit) ?code:? -?\d+|\bexitcode: -?\d+|\bcode: -?(?:0x[0-9a-f]+|\d+)"
    r"|\bvendor err \d+|\bstatus=\d+|\bsignal:? \d+",
    re.IGNORECASE,
)

#: To keep digits: they become characters of a private area, which no rule changes.
_HIDE = {ord(digit): 0xE000 + int(digit) for digit in "0123456789"}
_SIGNS = (":", ": ", "=")
_NUMBER_AT_END = re.compile(r"(?:0x[0-9a-f]+|\d+)$", re.IGNORECASE)
_UNHIDE = {hidden: digit for digit, hidden in _HIDE.items()}


def _after(*words: str) -> str:
    return "(?:" + "|".join(rf"(?<=(?<![\w-]){word})" for word in words) + ")"


#: Characters of a path, without those that end it in a sentence.
_OF_PATH = r"[^\s'\"<>|:,;()\[\]{}=]+"

#: A number, perhaps with grouped digits, as a version, as a shape (``2x3``), or with its unit.
_A_NUMBER = r"[-+]?(?!0x)\d[\d_]*(?:\.\d+)*(?:e[-+]?\d+)?(?!\d)(?:(?:x\d+)+|\s?(?:[kmgt]i?b|bytes?)\b)?"

#: The masking rule: a URL becomes ``<url>``, a path ``<path>``; ids, hosts, addresses, times and numbers become ``#``.
#: The first form that matches counts. Digits within a name stay, except after words that count equal things.
_FORMS = {
    "url": [r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>|,;()\[\]{}]+"],
    "path": [
        rf"(?<![\w./>~-])(?:~|\.{{1,2}})?/{_OF_PATH}",
        rf"(?<![\w/])[a-z]:\\{_OF_PATH}",
        r"(?<![\w./>~-])(?:[\w.+-]+/)+[\w.+-]*\.[a-z]\w{0,7}\b(?!/)",  # relative, of a file with an ending
    ],
    "id": [
        r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",
        r"\btmp[a-z0-9_]{6,}\b",
        r"\(nil\)|\b0x[0-9a-f]+(?:_[0-9a-f]+)*\b",
        rf"{_after('device ', 'address ', 'addr ', 'at ', 'ip ', 'sp ', 'pc ', 'ch ', 'channel ')}"
        r"(?=[a-f]*\d)[0-9a-f]+(?![\w:.-])",
        r"(?<!\w)(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{8,}(?!\w)",
    ],
    "host": [  # before its port, in brackets, after a word that says what it is, or a name such as nid001277
        r"(?<![\w<.:-])[\w.:-]{1,100}<\d+>",
        r"(?<=(?<![\w\])]\[))[a-z][\w.-]*(?=\]:\d)",
        r"(?<= connect to \()[\w.-]+(?=, \d)",
        rf"{_after('host ', 'hostname ', 'peer ', 'server ', 'connect to ', 'connection to ', 'connection from ')}"
        rf"{_HOST}(?![\w-])",
        rf"{_after(*(word + sign for word in ('host', 'hostname', 'node', 'nodename', 'machine') for sign in _SIGNS))}"
        r"[a-z][\w.-]*\w",
        rf"{_after('node ', 'on ', 'from ')}(?=[\w.]*-[\w.-]*\d)[a-z][\w.-]*\w",
        rf"(?<= on node ){_HOST}(?![\w-])",
        r"(?<![\w./-])(?!gfx|sha|sm)[a-z]{2,}\d{4,}(?![\w-])",
    ],
    "numbered": [rf"(?<![a-z0-9])(?:{_NUMBERED})\d+(?![a-z0-9])"],
    "number": [
        r"\b\d{4}-\d\d-\d\d(?:[t ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?",
        # times, IPv6, MAC, buses
        r"(?<![\w:])(?=[0-9a-f:]*\d)(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{1,4}(?![\w:])(?:[.,]\d+)?",
        r"(?<=[a-z_\])#]\.)\d+(?!\w)",  # layers.3.mlp
        r"(?<=\w=)[-+]?(?:inf|nan|infinity)(?!\w)",
        rf"(?<![a-z0-9.]){_A_NUMBER}",
    ],
}
_MASKED = re.compile("|".join(f"(?P<{kind}>{'|'.join(forms)})" for kind, forms in _FORMS.items()), re.IGNORECASE)

#: A list of masked numbers is one, however long.
_SEVERAL = re.compile(r"[-+]?#(?:[\s,:.x_-]*[-+]?#)+|#,(?=\))")


def masked(text: str) -> str:
    """Mask what differs from trial to trial by the rule of ``_FORMS``; a list of numbers becomes one ``#``."""

    def mask(match: re.Match[str]) -> str:
        if match.lastgroup == "numbered":
            return match[0].rstrip("0123456789") + "#"
        return f"<{match.lastgroup}>" if match.lastgroup in ("url", "path") else "#"

    return _SEVERAL.sub("#", _MASKED.sub(mask, text))


def message_words(message: str, host: str = "") -> str:
    """One line of a message that is equal for all trials that fail for the same reason.

    It is the first line that is not empty, with the next line if the first ends in ``raised:``. If the message contains
    a traceback, such as one from a worker of a ``DataLoader``, it is the last line. Numbers, addresses, hexadecimal
    ids, names of temporary files, and lists of these of any length become ``#``; paths become ``<path>``. Digits of a
    name (``float16``) and of an error code (``Xid 79``) stay. Names of hosts become ``#`` too: ``host``, names that
    differ from it in digits only, and names in the places where libraries write hosts. It has at most ``LONGEST``
    characters.
    """
    lines = [line for line in message.splitlines() if line.strip()]
    line = lines[0] if lines else ""
    if line.rstrip().endswith(" raised:") and len(lines) > 1:
        line = f"{line.strip()} {lines[1].strip()}"
    if any(each.endswith(HEADING) for each in lines):
        line = lines[-1]
    elif last_error := _LAST_ERROR.search(message):
        line = f"{line}: {last_error[1]}"
    line, before = on_one_line(line[:_LOOKED_AT]), None
    while before != line:  # a replacement can make another one possible
        before = line
        line = _BEFORE.sub("", line)
        for pattern, by in _SAID:
            line = pattern.sub(by, line)
        if host:
            line = _named_alike(host).sub("#", line)
        line = _CODES.sub(lambda code: _NUMBER_AT_END.sub(lambda number: number[0].translate(_HIDE), code[0]), line)
        line = masked(line).translate(_UNHIDE)
    return bounded(line.strip())


@lru_cache(maxsize=64)
def _named_alike(host: str) -> re.Pattern[str]:
    """Matches the name of a host, and names that differ from it in digits only, with or without a domain."""
    name = host.partition(".")[0]
    if not any(char.isdigit() for char in name):  # it may be a word
        return re.compile(r"(?!)")
    name = r"\d+".join(map(re.escape, re.split(r"\d+", name)))
    return re.compile(rf"(?<![\w.-]){name}(?:\.[a-z][\w-]*)*(?![\w-])", re.IGNORECASE)


def on_one_line(text: str) -> str:
    """A text on one line, without escape sequences of terminals."""
    return one_line(" ".join(ESCAPES.sub("", text).split()))


def bounded(text: str, longest: int = LONGEST) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


#: Types of exceptions that say no more than their message.
_SAY_LESS = ("Exception", "RuntimeError", "ValueError", "AssertionError", "SystemExit")

#: Longest place, and longest text of a signature, in characters.
_PLACE = 50
_SHORT = 40
_TEXT = 260

#: What torch says in the parent, and in the worker, if a signal has ended a worker.
_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: ([\w -]+)|exited unexpectedly)"
    r"|Unexpected ([\w -]+) encountered in worker"
)

#: Exceptions of a process whose pipe to another one is closed.
_CLOSED = ("ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "BrokenPipeError", "EOFError")

#: What a program has printed before it ended itself, in the message of a command's failure.
_LAST_WORDS = re.compile(r"ended itself with exit code -?\d+(?:, after step [^:]*)?: (.+)")

#: Where a process hung, at the end of its message: ``all_reduce in step() at train.py line 88``.
_HUNG = re.compile(
    r"; (?:(?P<called>[^;\n]+?) in )?(?:(?P<name>[^;\n]+?)\(\) at )?(?P<file>[^;\n]+) line (?P<line>\d+)"
    r"(?: \(last: [^)\n]*\))?$"
)

#: The same, where threads wait for locks; and each of them.
_LOCKS = re.compile(r"; ([^;\n]+ waits for lock [^;\n]+?)(?: \(last: [^)\n]*\))?$")
_LOCK = re.compile(r"(\S+)(?: waits)? for lock \S+ at ([^:\n]*):(\d+)")

#: Characters at the end of a message in which such a place is searched.
_END = 500

#: Lines that a process writes as it aborts; the one group is the reason.
_ABORTED = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^ *what\(\): +(.+)$",
        r"^(terminate called .+)$",
        r"((?:Memory access fault|HW Exception) by GPU .+)$",
        r"(HSA_STATUS_\w+.*)$",
        r"(Assertion [`'].+' failed)",
        r"^(\*\*\* .+ \*\*\*)",
        r"^((?:free|malloc|realloc|munmap_chunk|double free|corrupted|malloc_consolidate)\b.+)$",
    )
]

#: What the judge puts before a failure.
_OF_RANKS = re.compile(r"^ranks? \d[\d,-]*: ")

#: Keys of ``failure_details`` whose values come first, without the key; and keys whose values are left out.
_WHAT = ("kind", "type", "error", "message", "reason")
_NOT_WHAT = ("note", "traceback", "at", "rank", "phase")

#: Entries of them that make up a message.
_WORDS = 4

#: Kind and phase for a record without a failure.
_KINDS = {"timeout": ("timeout", "run"), "infrastructure_failed": ("exception", "launch")}


@dataclass(frozen=True)
class Signature:
    """What failing trials have in common.

    Attributes:
        kind: kind of the failure, as in the record; or ``named``, if a rule of the user has given it a name.
        type: of the exception, or name of the signal.
        role: ``rank`` where one rank of several has failed, whichever it was.
        where: innermost frame of the user's code, ``train.py:88 in step``, with the one that has called it where that
            is in another file, ``checks.py:5 in finite, from train.py:88 in step``; empty where there is none.
        message: first line, without numbers, addresses, paths and ids. Of a signal, what the process has said, or the
            innermost function that is known; of a hang, the function of a library that it was in; of a failed result,
            the words of its first detail.
        cause: the exception that was being handled when this one was raised.
        after: what the hardware has reported meanwhile: ``after Xid 94 (contained ECC error)``.
    """

    kind: str
    phase: str
    type: str = ""
    role: str = ""
    where: str = ""
    message: str = ""
    cause: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        """One line for the table: ``loss is nan (train.py:88 in step), after Xid 94 (contained ECC error)``."""
        return bounded(", ".join(filter(None, (self._without_hardware, self.after))), _TEXT)

    @property
    def _without_hardware(self) -> str:
        what = f"{self._what} at exit" if self.phase == "exit" else self._what
        if self.where:
            return bounded(f"{what} ({self.where})" + (f" after {self.cause}" if self.cause else ""), _TEXT)
        says_why = bool(self.message) if self.kind == "signal" else self.kind == "exit_code" and ": " in self.message
        if self.kind in ("signal", "exit_code", "timeout", "stall") and not says_why and self.phase != "exit":
            what += f" in {self.phase}()" if self.phase in ("setup", "run", "cleanup") else f" in {self.phase}"
        return bounded(f"{what} of a rank" if self.role else what, _TEXT)

    @property
    def short(self) -> str:
        """What it is called in a sentence with others: ``loss is nan``."""
        return bounded(self._what, _SHORT)

    @property
    def _what(self) -> str:
        if self.kind == "signal":
            return _joined(": " if " " in self.message else " in ", self.type, self.message)
        if self.kind in ("timeout", "stall"):
            return _joined(" in ", self.kind, self.message)
        if self.kind == "exception" and not (self.message and self.type in _SAY_LESS):
            return _joined(": ", self.type, self.message) or self.kind
        return self.message or self.kind


def signature_of(record: Mapping[str, Any], rules: Sequence[tuple[str, str]] = ()) -> Signature | None:
    """The signature of a trial's record; ``None`` where it has not failed.

    For ranks, it is the signature of the rank that is the cause. If the signature's text, the message or the traceback
    matches one of the ``rules`` (names with regular expressions), it is only the name of the first such rule.
    """
    if record["exit_status"] == "ok":
        return None
    signature = _signature_of(record)
    if reported := after(record.get("health") or {}, with_place=False):
        signature = replace(signature, after=reported)
    if rules:
        failure = record.get("failure") or {}
        details = (each for each in record["result"].get("failure_details") or () if isinstance(each, Mapping))
        said = [value for each in details for value in each.values() if isinstance(value, str)]
        texts = [signature.text, failure.get("message") or "", failure.get("traceback") or "", *said]
        for name, pattern in rules:
            if any(re.search(pattern, text, re.MULTILINE) for text in texts):
                return Signature("named", "", message=name)
    return signature


def _signature_of(record: Mapping[str, Any]) -> Signature:
    failure, host = record.get("failure"), record.get("host") or ""
    if not failure:  # a record of AORTA's, which has none
        kind, phase = _KINDS.get(record["exit_status"], ("result", "run"))
        return Signature(kind, phase, message=_details(record["result"], host) if kind == "result" else "")
    kind, phase, code = failure["kind"], failure["phase"], failure.get("exit_code")
    role = "" if failure.get("rank") is None and failure.get("confidence") is None else "rank"
    message = _OF_RANKS.sub("", failure.get("message") or "", count=1) if role else failure.get("message") or ""
    text = failure.get("traceback") or ""
    detected = (record["result"].get("output") or {}).get("detected") or {}
    if ended := _ended_worker(failure, (detected.get("worker") or {}).get("first") or ""):
        return Signature("exception", phase, message=ended)
    target = ((record.get("request") or {}).get("workload") or {}).get("target") or ""
    frames = failed_frames(text)
    if kind == "signal" and failure.get("signal"):
        said = next((match[1] for pattern in _ABORTED if (match := pattern.search(text))), "")
        if said:
            last_error = _LAST_ERROR.search(text)
            words = message_words(f"{said}\n{last_error[0]}" if last_error else said, host)
        else:
            own = own_frames(frames, target)
            called = frames[0].name if own and frames[0] != own[0] else ""
            words = on_one_line(native_function(native_frames(text))[0] or called)
        where = "" if _ELSEWHERE.search(words) else _place(frames, target)
        return Signature(kind, phase, on_one_line(failure["signal"]), role, where, bounded(words))
    if kind in ("timeout", "stall"):
        where, called = _hung(record, failure)
        # The C function in which the collector ``native`` has found the rank that is blamed, or the only process.
        native_data = ((record.get("collected") or {}).get("native") or {}).get("data") or {}
        called = called or on_one_line(
            (native_data.get(f"rank_{failure.get('rank') or 0}") or {}).get("function") or ""
        )
        return Signature(kind, phase, "", "rank" if record.get("ranks") else role, where, called)
    if kind == "exit_code":
        words = message_words(message, host) if code is None else f"exit code {code}"
        if not role:  # of ranks, the lines are of all of them, and say what has followed from the cause as well
            last = _LAST_WORDS.match(message)
            said = [name for name in detected if name != "nan" or last is None]
            if said:
                words = f"{words} ({said[0]})"
            elif last is not None:
                words = f"{words}: {message_words(last[1], host)}"
        return Signature(kind, phase, "", role, message=bounded(words))
    if kind == "result" and not failure.get("type"):
        ranks = (rank for rank in record.get("ranks") or () if rank["rank"] == failure.get("rank"))
        result = next((rank["result"] for rank in ranks if rank.get("result")), record["result"])
        return Signature(kind, phase, "", role, message=_details(result, host))
    type_name = bounded(on_one_line(failure.get("type") or ""))
    words = message if message == f"sys.exit({code})" else message_words(message, host).removeprefix(f"{type_name}: ")
    if _ELSEWHERE.search(words):
        return Signature(kind, phase, type_name, role, "", words)
    cause, exceptions = "", exceptions_in(text)
    if len(exceptions) > 1:
        first = exceptions[0]
        cause = _joined(": ", bounded(on_one_line(first.type or "")), message_words(first.message, host))
        where = _place(first.frames, target)
        cause = f"{cause} ({where})" if where else cause
    return Signature(kind, phase, type_name, role, _place(frames, target), words, cause)


def _ended_worker(failure: Mapping[str, Any], said: str) -> str:
    """What has ended a worker of a ``DataLoader``, if that is why a process has failed; else empty.

    The parent raises this wherever it is at that moment, or when it misses the worker, or when it finds a pipe closed.
    Only some of these errors name the signal; what the output has ``said`` may name it.
    """
    message, text = failure.get("message") or "", failure.get("traceback") or ""
    follows = failure["kind"] in ("signal", "exit_code") or failure.get("type") in _CLOSED
    if not _WORKER.search(message) and not (said and follows):
        return ""
    signals = (match[1] or match[2] for match in _WORKER.finditer(f"{message}\n{text}\n{said}"))
    return _joined(": ", "a DataLoader worker ended", next(filter(None, signals), "").lower())


def _joined(separator: str, *words: str) -> str:
    return separator.join(word for word in words if word)


def _place(frames: Sequence[Frame], target: str) -> str:
    own = own_frames(frames, target)
    if not own:
        return ""
    caller = next((frame for frame in own if frame.file != own[0].file), None)
    place = bounded(on_one_line(own[0].text), _PLACE)
    return place if caller is None else f"{place}, from {bounded(on_one_line(caller.text), _PLACE)}"


def _hung(record: Mapping[str, Any], failure: Mapping[str, Any]) -> tuple[str, str]:
    """Where a process hung, and in which function of a library.

    Of several ranks, it is the rank for which the others waited, or, if that is not known, the first that hung.
    """
    blamed = failure.get("rank")
    hung = [
        theirs["message"]
        for rank in record.get("ranks") or ()
        if (theirs := rank.get("failure") or {}).get("kind") in ("timeout", "stall") and blamed in (None, rank["rank"])
    ]
    message = (hung[0] if hung else failure.get("message") or "")[-_END:]
    if locks := _LOCKS.search(message):
        places = [f"{match[2]}:{match[3]} in {match[1]}" for match in _LOCK.finditer(locks[1])]
        return bounded(on_one_line(", ".join(places)), _PLACE), "wait for locks"
    match = _HUNG.search(message)
    if match is None:
        return "", ""
    place = Frame(match["file"], int(match["line"]), match["name"] or "").text
    return bounded(on_one_line(place), _PLACE), bounded(on_one_line(match["called"] or ""))


def _details(result: Mapping[str, Any], host: str) -> str:
    for detail in result.get("failure_details") or ():
        if isinstance(detail, Mapping):
            note = detail.get("note")
            if isinstance(note, str) and note.startswith(CONTRADICTED):
                return bounded(message_words(note.removeprefix(CONTRADICTED), host))
            words = {key: value for key, value in detail.items() if key not in _NOT_WHAT and isinstance(value, str)}
            texts = [message_words(words.pop(key), host) for key in _WHAT if key in words]
            texts += [message_words(f"{key} {value}", host) for key, value in words.items()]
            if texts:
                return bounded(", ".join(filter(None, texts[:_WORDS])))
    return "passed=False"
