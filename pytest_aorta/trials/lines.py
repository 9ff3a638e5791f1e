"""What a line of output says by itself: a number, a value that is not finite, what libraries print when they fail."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from itertools import islice
from typing import NamedTuple

from pytest_aorta.common.texts import ESCAPES

#: A number, as Python, C (also Microsoft's), JavaScript, Go and pandas write it. ``Nan`` is a name of people.
_NOT_FINITE = (
    r"(?:(?:nan|NaN|NAN)(?:\((?:ind|snan|q?nan)\))?|(?:inf|Inf|INF)(?:inity|INITY)?"
    r"|1\.#(?i:q?nan|snan|ind|inf)\d*|\N{INFINITY})"
)
_NUMBER = re.compile(
    r"(?:[a-z_][\w.]*[=:(\[]|[\s,;:()\[\]{}'\"*|<>~=$`\N{BOX DRAWINGS LIGHT VERTICAL}])*"
    rf"(?P<number>[-+]?(?:(?i:{_NOT_FINITE})|(?:\d{{1,3}}(?:,\d{{3}})+(?![\d,])(?:\.\d+)?"
    r"|\d[\d_]*(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?))"
    r"(?P<unit>%|[mun\u00b5]?s|sec|x|it/s|[kmgt]i?b(?:/s)?)?"
    r"(?:(?:[\s;()\[\]{}'\"*|<>~`%\N{BOX DRAWINGS LIGHT VERTICAL}\N{FULL BLOCK}]|[.,:](?!\d)).*)?",
    re.IGNORECASE | re.DOTALL,
)


#: A colour that has lost its first character, as in logs that were pasted somewhere.
_COLOUR = re.compile(r"\[(?:\d{1,3};){0,4}\d{1,3}m(?! ?\d)")


def plain_line(line: str) -> str:
    """A line without escape sequences of terminals."""
    line = ESCAPES.sub("", line) if "\x1b" in line else line
    return _COLOUR.sub("", line) if "[" in line else line


def number(text: str) -> int | float | None:
    """The number in a token, whatever is around it: ``0.5,``, ``50%``, ``7,282``, ``tensor(nan, device='cuda:0')``.

    ``None`` where it is none, or several: ``1.2.3``, ``3/10``.
    """
    match = _NUMBER.fullmatch(plain_line(text).strip())
    if match is None:
        return None
    digits = match["number"].lower().replace("\N{INFINITY}", "inf").replace(",", "")
    if re.fullmatch(r"[+-]?[0-9]{1,18}", digits):
        return int(digits)
    if "#" in digits or "nan" in digits:
        digits = f"{digits[0].strip('1')}inf" if "#inf" in digits else "nan"
    try:
        return float(digits)
    except ValueError:  # 1__0
        return None


# Values that are not finite. The rule: a whole number in one of the spellings stands
#
# (a) after a name of at most six words, and ``=``, ``:``, ``->``, an ellipsis or spaces; perhaps in quotes, or as the
#     only number of ``tensor(nan, device=...)``;
# (b) as a value of JSON, which is a case of (a);
# (c) alone behind a label: in a column of its own, or behind brackets.
#
# ``nan`` counts there whatever the name; ``inf`` where the name is one of the user's metrics, or has loss, norm or grad
# in it; ``-inf`` and what is in printed tensors and lists never does. A number that words follow is one of a sentence,
# or the beginning of the next name: it counts only where another pair follows, or the name is as for ``inf``.


class NotFinite(NamedTuple):
    """``NaN`` or ``inf``, and the name before it."""

    value: str
    name: str


_TOKEN = re.compile(
    rf"(?<![\w.\\/#~-])(?P<sign>[-+]?)(?P<value>{_NOT_FINITE})(?:\.\d+)?(?:ms|s|%)?(?![\w(\\/#]|-[^\W\d]|\.[^\W\d])"
)
_WORD = rf"(?!{_NOT_FINITE}\b)[^\W\d][\w./%@#*+-]*(?:\([^()\s]*\))?"
_NAME = re.compile(
    rf"(?<![\w./@-])(?P<name>{_WORD}(?: \(?{_WORD}\)?){{0,5}})(?: \([^()]{{1,40}}\)| [\d.]+(?=\s*[:=]))?[)\]}}>\"'`*|]*"
    r"(?P<sign>\s*(?:[:=]|[-=]+>|\N{RIGHTWARDS ARROW}|\u2248|\.{2,})\s*|\s*[|\u2502\u2503\t]\s*|\s+)"
    r"(?:[^\W\d][\w.]*\()?[\"'`*$~]*$"
)
_MEASURED = re.compile("loss|norm|grad", re.IGNORECASE)

#: More than six words before a number are a sentence.
_WORD_BEFORE = re.compile(r"(?<![\w.])[^\W\d][\w./'-]* $")

#: The number is one of the arguments of a call that is shown.
_IN_CALL = re.compile(r"(?<!\w)[^\W\d][\w.]*\([^()]*$")

#: After a number that is the name of something.
_IS_NAME = re.compile(rf"[\"'`)\]]*\s*[:=]\s*(?:[-+.\d\[{{(]|(?i:true|false|none|null)\b|{_NOT_FINITE}\b)")
_ARROW = re.compile(r"\s*(?:[-=]+>|\N{RIGHTWARDS ARROW})")
_IS_ALONE = re.compile(r"\s*(?:[|\u2502\u2503]|$)")
_IS_LAST = re.compile(
    r"[\"'`*)\]}>]*(?:\s*(?:$|[,;|&!?\u2502\u2503(\[\u2022{}+\u00b1]|[.-](?:\s|$))|\s{2,}|\t|\s+[-=]+>)"
)
_VALUE = rf"(?:[-+]?[\d.]|{_NOT_FINITE}\b)"
_THEN = rf"[\"'`*)\]}}>]*\s+(?:{_WORD}\s*=|{_WORD}\s+{_VALUE}\S*\s*(?:$|[,;|]|\s{_WORD}[\s:=]+{_VALUE})"
_THEN_PAIR = re.compile(rf"{_THEN}|(?:{_WORD} )?{_WORD}\s*:)")
_THEN_PAIR_BY_SPACES = re.compile(f"{_THEN})")
_IS_LONGER_NAME = re.compile(rf"\s{_WORD}(?: {_WORD}){{0,2}}\s*[:=]\s*(?!{_NOT_FINITE})[^\W\d]")

#: Characters before and after a number that are looked at, and numbers of a line.
_AROUND, _MOST_NUMBERS = 200, 100


def named(name: str) -> str:
    """A name in the form in which metrics are compared: ``lm loss`` becomes ``lm_loss``."""
    return re.sub(r"\W+", "_", name).strip("_").lower()


def not_finite_in(line: str, metrics: Collection[str] = (), allowed: Collection[str] = ()) -> list[NotFinite]:
    """The values of a line that are NaN or infinite, with their names.

    ``metrics``: names of the user's own metrics, besides the known ones. ``allowed``: names whose values may be NaN or
    infinite. Both are spelled as ``named`` spells names.
    """
    values: list[NotFinite] = []
    lower = line.lower()
    if not any(hint in lower for hint in _HINTS["nan"]):
        return values
    for token in islice(_TOKEN.finditer(line), _MOST_NUMBERS):
        before, after = line[max(0, token.start() - _AROUND) : token.start()], line[token.end() :][:_AROUND]
        label = _NAME.search(before)
        if label is None or _IS_NAME.match(after):
            continue
        words, sign, value = label["name"].split(" "), label["sign"].strip(), token["value"].lower()
        is_infinite = "nan" not in value and "ind" not in value
        names = {named(" ".join(words[at:])) for at in range(len(words))}
        is_measured = not names.isdisjoint(metrics) or _MEASURED.search(label["name"]) is not None
        if not names.isdisjoint(allowed) or not _counts(label, sign, after, line[: token.start()], is_measured):
            continue
        if is_infinite:
            is_said = not _IS_LAST.match(after) and not sign and not _MEASURED.search(words[-1])  # improved from inf to
            if token["sign"] == "-" or not is_measured or _ARROW.match(after) or is_said:
                continue
        while not sign and is_measured and len(words) > 1 and not _MEASURED.search(words[-1]):  # loss is
            words.pop()
        values.append(NotFinite("inf" if is_infinite else "NaN", " ".join(words)))
    return values


def _counts(label: re.Match[str], sign: str, after: str, before: str, is_measured: bool) -> bool:
    start = len(before) - len(label.string) + label.start()
    if sign in ("|", "\u2502", "\u2503"):
        return _IS_ALONE.match(after) is not None
    if not sign and _WORD_BEFORE.search(label.string[: label.start()]):
        return False
    if not is_measured and _IN_CALL.search(before[:start]):
        return False
    if sign == "=" or _IS_LAST.match(after):
        return True
    if is_measured:
        return bool(sign) or _IS_LONGER_NAME.match(after) is None
    return (_THEN_PAIR if sign else _THEN_PAIR_BY_SPACES).match(after) is not None


#: Any number, where it is no part of a word, with its unit.
_ANY_NUMBER = re.compile(
    rf"(?<![\w.])[-+]?(?:\d[\d_,.:/]*(?:e[-+]?\d+)?|{_NOT_FINITE})(?:\s?(?:%|(?:[mun\u00b5]?s|sec|\w+/\w+|[kmgt]i?b)\b))?",
    re.IGNORECASE,
)
_IS_COUNT = re.compile(r"(?:step|iter|iteration|batch|epoch)s?\W*$", re.IGNORECASE)
_IS_MEASURED = re.compile(r"[\w./-]*(?:loss|norm|grad)[\w./-]*\W*$", re.IGNORECASE)


_LOGGED = re.compile(r"[\]:|>,]\s|\s-\s")


def is_of_metrics(line: str) -> bool:
    """Whether a line has names of at most two words with values and no more, and counts steps, or has a loss or norm.

    So has ``step 12 loss 0.5 (3 ms)``, but neither ``loss 0.5 differs from golden 0.6`` nor ``step 5: bad checksum``.
    """
    *names, rest = _ANY_NUMBER.split(line)
    words = [len(re.findall(r"[^\W\d]+", name)) for name in names]
    is_compared = any(count == 0 and name.strip(" ()[]{}/,|") for count, name in zip(words[1:], names[1:], strict=True))
    if not names or is_compared or any(map(str.isalpha, rest)) or max(words[1:], default=0) > 2:
        return False
    # Loggers and launchers put something before the first name; a sentence may end with a number of a step.
    if len(re.findall(r"[^\W\d]+", _LOGGED.split(names[0].rstrip(" \t:=[(#"))[-1])) > 3:
        return False
    return any(_IS_COUNT.search(name) or _IS_MEASURED.search(name) for name in names)


#: Before the name of an exception or an error that ends a program, or that a library logs: nothing, or what loggers and
#: outer exceptions put there. Words before it are a sentence about it.
_HEAD = r"(?:^\W*|[\]:|>)\"'] ?|^E +|\b(?:[Ee]rror|ERROR|WARN(?:ING)?|FATAL|CRITICAL|with|of|at|status|returned) )"


def _raised(names: str) -> str:
    return rf"{_HEAD}(?:\w+\.)*(?:{names})(?:: |:?\s*$|\()"


def _code(names: str) -> str:
    """A code of a library, where its messages have it."""
    return rf"{_HEAD}(?:{names})(?:[\"'.,:;)]|\s*$| \(| when calling| at \S+:\d|: )|(?:[=(] ?)(?:{names})\b"


#: What libraries print when they fail, in the form that they print it; what is not finite has a rule of its own.
_SAID = {
    "oom": "|".join(
        (
            _raised("OutOfMemoryError|MemoryError|ResourceExhaustedError"),
            rf"{_HEAD}(?:\w+ )?(?:CUDA|HIP|XPU|NPU|MPS|MPS backend) out of memory(?:[.:(,!]|\s*$)",
            r"\b[Oo]ut of memory: Kill(?:ed)? process \d|\boom-kill:|\binvoked oom-killer",
            r"(?:Errno 12\]|:) [Cc]annot allocate memory\b|Allocator: (?:can't allocate|not enough) memory",
            rf"(?:what\(\):\s*|instance of '|{_HEAD})std::bad_alloc\b",
            r"\bRESOURCE_EXHAUSTED: ",
            _code(r"cudaErrorMemoryAllocation|hipError_?OutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|\w+_STATUS_ALLOC_FAILED"),
        )
    ),
    "nccl": "|".join(
        (
            _raised(r"DistBackendError"),
            r"\b[NR]CCL [Ee]rror(?: in:? |: | \d)|Test [NR]CCL failure|: unhandled (?:system|cuda|hip) error",
            r"\bnccl(?:System|Internal|Remote|UnhandledCuda)Error: |\bncclInvalid(?:Usage|Argument): ",
            r"[NR]CCL communicator (?:was aborted|encountered error)|[NR]CCL WARN .*\b(?:[Ee]rror|failed)\b",
        )
    ),
    "hip-fault": "|".join(
        (
            r"hsa-runtime\b.*\bError code: [1-9]|(?:Memory access fault|HW Exception) by GPU node-|: GPU core dump",
            r"\bHIP (?:runtime )?error: |HIP runtime call failed with (?!hipError_?Out)|VM_L2_PROTECTION_FAULT_STATUS",
            r"amdgpu .*(?:page fault|GPU reset|ring \S+ timeout)|\b(?:rocBLAS|hipBLAS) error: |MIOpen\S* Error\b",
            _code(r"HSA_STATUS_ERROR\w*|hipError_?(?!_?OutOfMemory)[A-Z]\w+|HIPBLAS_STATUS_(?!SUCCESS)\w+"),
        )
    ),
    "cuda-error": "|".join(
        (
            r"\bCUDA (?:runtime |driver )?error(?:: | \d)|\bXid \(PCI:[^)]*\): \d|\bcu\w+ error: ",
            r"an illegal memory access was encountered|device-side assert triggered",
            _code(r"cudaError(?!MemoryAllocation)[A-Z]\w+|CUDA_ERROR_(?!OUT_OF_MEMORY)\w+"),
            _code(r"CU(?:BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS_(?!SUCCESS|ALLOC_FAILED)[A-Z]\w+"),
        )
    ),
    "watchdog": r"[Ww]atchdog (?:caught collective operation timeout|thread terminated with|got stuck)"
    r"|ran for \d+ milliseconds before|Heartbeat monitor timed out|(?:failed to pass|timed out in) monitoredBarrier"
    r"|soft lockup - CPU|blocked for more than \d+ s|Timed out waiting \d+ms for (?:recv|send)",
    "assert": rf"{_raised('AssertionError')}|Assertion [`'\"(].*failed|INTERNAL ASSERT FAILED at"
    rf"|{_HEAD}[Aa]ssert(?:ion)? failed\b|device-side assert triggered",
    "worker": r"^ERROR: Unexpected [\w -]+ encountered in worker"
    r"|\bDataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: (?!Terminated)|exited unexpectedly)",
}


@cache
def _detector(name: str) -> re.Pattern[str]:
    return re.compile(_SAID[name])  # when it is first needed: all of them take as long as some commands do


#: In lower case; what a detector looks for is only in lines with one of these, which most lines are without.
_HINTS = {
    "nan": ("nan", "inf", "1.#", "\N{INFINITY}"),
    "oom": ("memory", "alloc", "oom-kill", "exhausted"),
    "nccl": ("ccl", "backenderror", "unhandled"),
    "hip-fault": ("hip", "hsa", "gpu", "l2_protection", "rocblas", "miopen"),
    "cuda-error": ("cu", "_status_", "illegal memory", "device-side", "xid"),
    "watchdog": ("watchdog", "milliseconds", "heartbeat", "barrier", "lockup", "blocked for", "timed out"),
    "assert": ("assert",),
    "worker": ("worker",),
}

#: A program that goes on says the exception of a process or thread that it has started, or of its exit.
TRACEBACK = "traceback"

#: All names, in the order in which they are told.
DETECTORS = (*_HINTS, TRACEBACK)

_TRACE = re.compile(r"(?P<before>.*?)Traceback \(most recent call last\):\s*$")
_EXCEPTION = re.compile(r"[^\W\d][\w.]*(?:: |:?\s*$)")


class RaisedLines:
    """Tells the lines with which tracebacks of Python end, also behind what a launcher puts before each line."""

    def __init__(self) -> None:
        self._before: str | None = None

    def ends_at(self, line: str) -> bool:
        """Whether this line, the next of the output, has the exception of a traceback."""
        if started := _TRACE.match(line):
            self._before = started["before"]
            return False
        if self._before is None or not line.startswith(self._before):
            return False
        if not _EXCEPTION.match(line[len(self._before) :]):
            return False
        self._before = None
        return True


def detected_in(line: str, not_finite: Collection[NotFinite] | None = None) -> list[str]:
    """``not_finite``: what is known of its values that are not finite."""
    lower = line.lower()
    hinted = [name for name, hints in _HINTS.items() if any(hint in lower for hint in hints)]
    values = not_finite_in(line) if not_finite is None and "nan" in hinted else not_finite
    return [name for name in hinted if (values if name == "nan" else _detector(name).search(line))]
