"""Failure signatures: which failing trials have failed alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_aorta.triage.failures.message_words import bounded, shown, words_of
from pytest_aorta.triage.failures.stack_frames import Frame, first_traceback, frames_of, native_function, own_frames

#: Types of exceptions that say less than any message, or the same.
_SAY_LESS = ("Exception", "RuntimeError", "ValueError", "AssertionError", "SystemExit")

#: Longest place, and longest text of a signature, in characters.
_PLACE = 50
_TEXT = 200

#: Where a process hung, at the end of its message: ``all_reduce in step() at train.py line 88``.
_HUNG = re.compile(
    r"; (?:(?P<called>[^;\n]+?) in )?(?:(?P<name>[^;\n]+?)\(\) at )?(?P<file>[^;\n]+) line (?P<line>\d+)"
    r"(?: \(last: [^)\n]*\))?$"
)

#: Characters at its end that are searched for that.
_LOOKED_AT = 500

#: What a process has said as it aborted; each has one group, the reason.
_ABORTED = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^ *what\(\): +(.+)$",
        r"^(terminate called .+)$",
        r"(Memory access fault by GPU .+)$",
        r"(HSA_STATUS_\w+.*)$",
        r"(Assertion [`'].+' failed)",
        r"^(\*\*\* .+ \*\*\*)",
        r"^((?:free|malloc|realloc|munmap_chunk|double free|corrupted|malloc_consolidate)\b.+)$",
    )
]

#: Keys of ``failure_details`` whose values come first, without the key; and those whose values are left out.
_WHAT = ("kind", "type", "error", "message", "reason")
_NOT_WHAT = ("note", "traceback", "at", "rank", "phase")

#: Entries of them that make up a message.
_WORDS = 4

#: Of a record without a failure.
_KINDS = {"timeout": ("timeout", "run"), "infrastructure_failed": ("exception", "launch")}


@dataclass(frozen=True)
class Signature:
    """What failing trials have in common.

    Attributes:
        kind: of the failure: exception, signal, exit_code, timeout, stall, result, rank.
        phase: in which it failed.
        type: of the exception, or name of the signal.
        role: ``rank`` where one rank of several has failed, whichever it was; else empty.
        where: innermost frame of the user's code, ``train.py:88 in step``, with the one that has called it where that
            is in another file, ``checks.py:5 in finite, from train.py:88 in step``; empty where there is none.
        message: first line, without numbers, addresses, paths and ids. Of a signal, what the process has said, or the
            innermost function that is known; of a hang, the function of a library that it was in; of a failed result,
            the words of its first detail.
        cause: of an exception that was raised while another one was handled: that one.
    """

    kind: str
    phase: str
    type: str = ""
    role: str = ""
    where: str = ""
    message: str = ""
    cause: str = ""

    @property
    def text(self) -> str:
        """One line for the table: ``loss is nan (train.py:88 in step)``."""
        what = self._what
        if self.where:
            return bounded(f"{what} ({self.where})" + (f" after {self.cause}" if self.cause else ""), _TEXT)
        if self.kind in ("signal", "exit_code", "timeout", "stall") and not (self.kind == "signal" and self.message):
            what += f" in {self.phase}()" if self.phase in ("setup", "run", "cleanup") else f" in {self.phase}"
        return bounded(f"{what} of a rank" if self.role else what, _TEXT)

    @property
    def _what(self) -> str:
        """Without the place."""
        if self.kind == "signal":
            return _joined(": " if " " in self.message else " in ", self.type, self.message)
        if self.kind in ("timeout", "stall"):
            return _joined(" in ", self.kind, self.message)
        if self.kind == "exception" and not (self.message and self.type in _SAY_LESS):
            return _joined(": ", self.type, self.message) or self.kind
        return self.message or self.kind


def signature_of(record: Mapping[str, Any]) -> Signature | None:
    """The signature of a trial's record; ``None`` where it has not failed.

    Of ranks, it is that of the one that is the cause.
    """
    if record["exit_status"] == "ok":
        return None
    failure = record.get("failure")
    if not failure:  # a record of AORTA's, which has none
        kind, phase = _KINDS.get(record["exit_status"], ("result", "run"))
        return Signature(kind, phase, message=_details(record["result"]) if kind == "result" else "")
    kind, phase = failure["kind"], failure["phase"]
    role = "rank" if failure.get("rank") is not None else ""
    message = (failure.get("message") or "").removeprefix(f"rank {failure.get('rank')}: ")
    text = failure.get("traceback") or ""
    target = ((record.get("request") or {}).get("workload") or {}).get("target") or ""
    if kind == "signal" and failure.get("signal"):
        frames = frames_of(text)
        said = next((found[1] for pattern in _ABORTED if (found := pattern.search(text))), "")
        called = native_function(text) or _called(frames, target)
        words = words_of(said) if said else shown(called)
        return Signature(kind, phase, shown(failure["signal"]), role, _place(frames, target), bounded(words))
    if kind in ("timeout", "stall"):
        where, called = _hung(record, failure)
        return Signature(kind, phase, "", "rank" if record.get("ranks") else role, where, called)
    if kind == "exit_code":
        code = failure.get("exit_code")
        return Signature(kind, phase, "", role, message=words_of(message) if code is None else f"exit code {code}")
    if kind == "result" and not failure.get("type"):
        ranks = (rank for rank in record.get("ranks") or () if rank["rank"] == failure.get("rank"))
        result = next((rank["result"] for rank in ranks if rank.get("result")), record["result"])
        return Signature(kind, phase, "", role, message=_details(result))
    where = _place(frames_of(text), target)
    type_name = bounded(shown(failure.get("type") or ""))
    code = failure.get("exit_code")
    words = message if message == f"sys.exit({code})" else words_of(message).removeprefix(f"{type_name}: ")
    return Signature(kind, phase, type_name, role, where, words, _cause(text, target))


def _joined(separator: str, *words: str) -> str:
    return separator.join(word for word in words if word)


def _place(frames: Sequence[Frame], target: str) -> str:
    """The innermost frame of the user's code, and the innermost of another file if that has called it."""
    own = own_frames(frames, target)
    if not own:
        return ""
    caller = next((frame for frame in own if frame.file != own[0].file), None)
    place = bounded(shown(own[0].text), _PLACE)
    return place if caller is None else f"{place}, from {bounded(shown(caller.text), _PLACE)}"


def _called(frames: Sequence[Frame], target: str) -> str:
    """The innermost function of a library that the user's code was in."""
    own = own_frames(frames, target)
    return frames[0].name if own and frames[0] != own[0] else ""


def _cause(text: str, target: str) -> str:
    """The exception with which it began."""
    first = first_traceback(text)
    if first is None:
        return ""
    frames, raised = first
    where = _place(frames, target)
    name, _, message = raised.partition(": ")
    words = _joined(": ", bounded(shown(name.rpartition(".")[2])), words_of(message))
    return f"{words} ({where})" if where else words


def _hung(record: Mapping[str, Any], failure: Mapping[str, Any]) -> tuple[str, str]:
    """Where a process hung, and in which function of a library.

    Of ranks, it is the one that the others waited for, or where that is not known, the first that hung.
    """
    blamed = failure.get("rank")
    hung = [
        theirs["message"]
        for rank in record.get("ranks") or ()
        if (theirs := rank.get("failure") or {}).get("kind") in ("timeout", "stall") and blamed in (None, rank["rank"])
    ]
    message = hung[0] if hung else failure.get("message") or ""
    found = _HUNG.search(message[-_LOOKED_AT:])
    if found is None:
        return "", ""
    place = Frame(found["file"], int(found["line"]), found["name"] or "").text
    return bounded(shown(place), _PLACE), bounded(shown(found["called"] or ""))


def _details(result: Mapping[str, Any]) -> str:
    """The words of the first entry of a result's ``failure_details`` that the workload has made."""
    for detail in result.get("failure_details") or ():
        if not isinstance(detail, Mapping):
            continue
        words = {key: value for key, value in detail.items() if key not in _NOT_WHAT and isinstance(value, str)}
        first = {key: words.pop(key) for key in _WHAT if key in words}
        texts = [words_of(value) for value in first.values()]
        texts = [*texts, *(words_of(f"{key} {value}") for key, value in words.items())][:_WORDS]
        if texts:
            return bounded(", ".join(text for text in texts if text))
    return "passed=False"
