"""What the output of a command says: steps, metrics, failures, what libraries print when they fail.

Metrics also come from files: lines of JSON, and those for TensorBoard.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pytest_aorta.common.texts import ESCAPES
from pytest_aorta.trials.command_line import fill_in
from pytest_aorta.trials.steps import StepClock

# What a line says by itself

#: A number, as Python, C (also Microsoft's), JavaScript and pandas write it.
_NOT_FINITE = r"(?:nan(?:\((?:ind|snan|q?nan)\))?|inf(?:inity)?|1\.#(?:q?nan|snan|ind|inf)\d*|\N{INFINITY})"
_NUMBER = re.compile(
    r"(?:[a-z_][\w.]*[=:(\[]|[\s,;:()\[\]{}'\"*|<>~=$`\N{BOX DRAWINGS LIGHT VERTICAL}])*"
    rf"(?P<number>[-+]?(?:{_NOT_FINITE}|(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?))"
    r"(?P<unit>%|[mun\u00b5]?s|sec|x|it/s|[kmgt]i?b(?:/s)?)?"
    r"(?:(?:[\s;()\[\]{}'\"*|<>~`%\N{BOX DRAWINGS LIGHT VERTICAL}\N{FULL BLOCK}]|[.,:](?!\d)).*)?",
    re.IGNORECASE | re.DOTALL,
)


def plain_line(line: str) -> str:
    return ESCAPES.sub("", line) if "\x1b" in line else line


def number(text: str) -> int | float | None:
    """The number in a token, whatever is around it: ``0.5,``, ``50%``, ``12ms``, ``tensor(nan, device='cuda:0')``.

    ``None`` where it is none, or several: ``1.2.3``, ``3/10``.
    """
    found = _NUMBER.fullmatch(plain_line(text).strip())
    if found is None:
        return None
    digits = found["number"].lower().replace("\N{INFINITY}", "inf")
    if re.fullmatch(r"[+-]?[0-9]{1,18}", digits):
        return int(digits)
    if "#" in digits or "nan" in digits:
        digits = f"{digits[0].strip('1')}inf" if "#inf" in digits else "nan"
    try:
        return float(digits)
    except ValueError:  # 1__0
        return None


#: A NaN or infinity that is no part of a word, a path, or the name of a function.
_TOKEN = re.compile(
    rf"(?<![\w\\#])(?<![a-z]\.)(?<![a-z~.]/)(?<![a-z]-)(?:[-+](?=\S))?({_NOT_FINITE}s?)(?:ms|s|%)?"
    r"(?![\w(\\#])(?!-[a-z])(?!\.[a-z_])(?!/(?!nan|inf)[a-z_.])",
    re.IGNORECASE,
)

#: What stands between a name, or the number before, and the number.
_WRAPPER = re.compile(
    r"(?:(?:\b(?:tensor|array|float\d*|bfloat16|double|half|np\.\w+|numpy\.\w+|torch\.\w+|parameter|scalar))?[\[({<]"
    r"|[\s\"'*`|~$\N{BOX DRAWINGS LIGHT VERTICAL}])+$",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"(?P<name>[\w.\-/ ()@\[\]]*?)[\"'*`)\]\s]*(?:[:=]|[-=]>|\N{RIGHTWARDS ARROW}|\u2248|\u00b1)$")

#: Words that are names of measured values, or end so.
_MEASURED = re.compile(
    r"(?:loss|losses|ppl|perplexity|norms?|grads?|gradients?|acc|accuracy|err|errors?|mse|rmse|mae|lr|scores?|value|val"
    r"|train|test|mean|avg|average|std|var|nll|ce|kl|bp[bc]|elbo|rewards?|returns?|entropy|logits?|outputs?|psnr|ssim"
    r"|auc|bleu|scale|weights?|distance|diff|cost|objective|energy|residual|mfu|ratio|metric|delta|f1|checksum|max|min"
    r"|sum|perp|wer)\d*\)?$",
    re.IGNORECASE,
)

#: Names of options and bounds, which are infinite or missing on purpose.
_ON_PURPOSE = re.compile(
    r"best|min|max(?!.?(?:err|diff))|patience|limit|clip|norm_type|ord$|bound|thresh|mask|fill|missing|na_rep|policy"
    r"|default|timeout|initial|\bp$|bias|horizon|budget|until|level|lvl|severity|sentinel|padding|previous|prev\b|repr"
    r"|ttl|expires|deadline|range|window|cutoff",
    re.IGNORECASE,
)

#: What makes a NaN that is a word of a sentence a finding, and what takes it back.
_HAPPENED = re.compile(
    r"\b(?:is|was|were|are|be[ck]ame|becomes?|turned|went|got|returned|found|detected|detects|contains?|contained"
    r"|containing|produced|produces|encountered|hit|has|have|had|yields?|yielded|gave|equals?|reached|diverged|due"
    r"|because|saw|seen|overflow\w*|abort\w*|stopping|stopped|failed|error)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:\b(?:zero|0)\s*$|\b(?:no|not|without|never|none|if|whether|check(?:s|ing|ed)?|when|unless|until|why|how|any|free"
    r"|(?:dis|en)abled?|would|could|may|might|can|should|skip(?:s|na)?|masks?|masking|masked|stop on|fail on|uses?"
    r"|(?:ignor|drop|replac|fill|remov|allow|treat|handl|guard|interpolat|imput|propagat|convert|support|test_)\w*"
    r"|nan_to_num|using|called|named)\b|n't\b|\bdetect_)",
    re.IGNORECASE,
)

#: After a number, another name, a unit, a sign, or the end.
_PROSE_AFTER = re.compile(
    r"[\"'`)]*[ \t]+(?:check(?:s|ing|er)?|values?|handling|policy|detect\w*|guards?|safe|mask\w*|entries|rows?|columns?"
    r"|counts?|cells|samples|in|or|and|are|is|was|were|found|will|would|should|during|as|at|by|from|to|with|for|on|after"
    r"|norm|hooks?|propagation|filter\w*|gradients?|losses|loss|grads?|inputs?|outputs?|tests?|support|before|weights"
    r"|of|free|tolerance|encountered|occurred|appeared|parameters?|tensors?)\b",
    re.IGNORECASE,
)


#: Characters before and after a number that say what it is.
_AROUND = 200

#: Numbers of a line that are looked at.
_MOST_NUMBERS = 100


def _is_value(line: str, token: re.Match[str]) -> bool:
    """Whether a token says that a value is NaN or infinite.

    A name and a number (``loss=nan``, ``loss nan``, ``[nan, 1.0]``), or a sentence (``Loss is nan, stopping``). Neither
    a part of a word (``nanoGPT``, ``info``), nor an option (``best: inf``), nor what is denied (``no NaN found``).
    """
    before, after, text = line[max(0, token.start() - _AROUND) : token.start()], line[token.end() :][:_AROUND], token[1]
    infinite = text.lower().startswith("inf") or text == "\N{INFINITY}"
    if text.lower().endswith("s") or _PROSE_AFTER.match(after) or re.match(r"[\"']?\s*[=:]\s*\S", after):
        return _is_said(before, after, infinite)
    if text == "INF" and re.search(r"(?:^|[\d\])>|Z])\s*[\[(|]?$", before):  # the level of a log
        return False
    bare = _WRAPPER.sub("", before)
    assigned = _ASSIGNED.search(bare)
    if assigned is not None:
        name = assigned["name"].strip(" )]").rpartition("  ")[2]
        if infinite and bare.endswith(">"):
            return _MEASURED.search(name) is not None
        return not _ON_PURPOSE.search(name[-40:]) and not (text == "Nan" and re.match(r" [A-Z]", after))
    if infinite and re.match(r"\s*(?:-+>|=>|\N{RIGHTWARDS ARROW}|to\b)", after):  # an improvement over nothing
        return False
    if not bare:
        return not infinite or not after.strip(" ])},;.0123456789")
    if re.search(r"[\d,/;\[({]$|(?:nan|inf)$", bare, re.IGNORECASE):
        return not (_ON_PURPOSE.search(bare) if infinite else _DENIED.search(bare[-40:]))
    word = bare.rpartition(" ")[2]
    if _MEASURED.search(word) and not _DENIED.search(bare):
        return not (infinite and _ON_PURPOSE.search(bare[-40:]))
    return _is_said(before, after, infinite)


def _is_said(before: str, after: str, infinite: bool) -> bool:
    clause = re.split(r"[;!?]|\.\s", before)[-1]
    rest = re.split(r"[;!?]|\.\s", after)[0]
    if _DENIED.search(clause) or re.match(r"[\"']?\s*(?:[=:]\s*\S|-)", after):
        return False
    if infinite and re.search(r"\bfrom\s*$", before):
        return False
    return bool(_HAPPENED.search(clause[-60:]) or (_HAPPENED.search(rest) and not _DENIED.search(rest)))


#: What libraries print when they fail, by the name of what has happened; NaN has rules of its own.
_SAID = {
    "oom": r"out of memory|OutOfMemoryError|\bMemoryError\b|(?:can't|Cannot) allocate memory|not enough memory"
    r"|std::bad_alloc|RESOURCE_EXHAUSTED|MemoryAllocation\b|hipError_?OutOfMemory|STATUS_ALLOC_FAILED|oom-kill",
    "nccl": r"\b[NR]CCL error\b|\bnccl(?:System|Internal|Remote|UnhandledCuda)Error\b|\bncclInvalid(?:Usage|Argument)\b"
    r"|DistBackendError|[NR]CCL communicator (?:was|encountered|error)|Test [NR]CCL failure"
    r"|unhandled (?:system|cuda|hip) error",
    "hip-fault": r"hsa-runtime\b.*\bError code: [1-9]|Memory access fault by GPU|HSA_STATUS_ERROR|HW Exception by GPU"
    r"|\bHIP (?:runtime )?error\b|\bhipError_?(?!_?OutOfMemory)[A-Z]|VM_L2_PROTECTION_FAULT"
    r"|amdgpu.*(?:page fault|GPU reset|ring \S+ timeout)|GPU core dump|rocBLAS error"
    r"|HIPBLAS_STATUS_(?!SUCCESS)|MIOPEN.*Error\b",
    "cuda-error": r"\bCUDA (?:runtime |driver )?error\b|\bcudaError(?!MemoryAllocation)[A-Z]"
    r"|\bCUDA_ERROR_(?!OUT_OF_MEMORY)|CU(?:BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS_(?!SUCCESS|ALLOC_FAILED)[A-Z]"
    r"|illegal memory access|device-side assert|\bXid \(PCI:",
    "watchdog": r"[Ww]atchdog (?:caught collective|thread terminated|got stuck)|ran for \d+ milliseconds before"
    r"|Heartbeat monitor timed out|monitoredBarrier|soft lockup|watchdog: BUG|hung_task_timeout"
    r"|blocked for more than \d+ s|Timed out waiting \d+ms for (?:recv|send)",
    "assert": r"Assertion [`'\"(].*failed|\bAssertionError\b|INTERNAL ASSERT FAILED|Assertion failed\b"
    r"|device-side assert|\bassert(?:ion)? failed\b",
}
_DETECTORS = {name: re.compile(pattern, re.IGNORECASE if name == "oom" else 0) for name, pattern in _SAID.items()}

#: In lower case; what a detector looks for is only in lines with one of these, which most lines are without.
_HINTS = {
    "nan": ("nan", "inf", "1.#", "\N{INFINITY}"),
    "oom": ("memory", "alloc", "oom-kill", "exhausted"),
    "nccl": ("ccl", "backenderror", "unhandled"),
    "hip-fault": ("hip", "hsa", "gpu", "l2_protection", "rocblas", "miopen"),
    "cuda-error": ("cuda", "_status_", "illegal memory", "device-side", "xid"),
    "watchdog": ("watchdog", "milliseconds", "heartbeat", "barrier", "lockup", "hung_task", "blocked for", "timed out"),
    "assert": ("assert",),
}

#: All names, in the order in which they are told.
DETECTORS = tuple(_HINTS)


def detected_in(line: str) -> list[str]:
    lower = line.lower()
    hinted = [name for name, hints in _HINTS.items() if any(hint in lower for hint in hints)]
    tokens = islice(_TOKEN.finditer(line), _MOST_NUMBERS)
    return [
        name
        for name in hinted
        if (any(_is_value(line, token) for token in tokens) if name == "nan" else _DETECTORS[name].search(line))
    ]


# Metrics that training loops write by themselves

#: What lines say, by who writes them. ``pairs`` are names with values; the other groups as in the pattern of a metric.
LINES: Mapping[str, tuple[re.Pattern[str], ...]] = {
    name: tuple(map(re.compile, patterns))
    for name, patterns in {
        "tqdm": [r"(?P<step>\d+)/(?P<total>\d+) \[(?P<pairs>[^\]]*)"],
        "hf": [r"%\|[^|]*\| *(?P<step>\d+)/(?P<total>\d+) \[", r"(?P<pairs>\{['\"]\w+['\"]: .*\})"],
        "lightning": [r"Epoch \d+(?:/\d+)?\b.*?(?P<step>\d+)/(?P<total>\d+)\s(?P<pairs>.*)"],
        "nanogpt": [
            r"iter (?P<step>\d+): loss (?P<loss>[^,\s]+), time (?P<step_ms>[\d.]+)ms",
            r"step \d+: train loss (?P<train_loss>[^,\s]+), val loss (?P<val_loss>[^,\s]+)",
        ],
    }.items()
}

#: What files say.
FILES = ("jsonl", "tensorboard")

_PAIR = re.compile(r"['\"]?(?P<name>[A-Za-z_][\w/.-]*)['\"]?\s*[=:]\s*['\"]?(?P<value>[^\s,;|}\]'\"]+)")

#: Names of the number of a step in lines of JSON.
_STEPS = ("step", "global_step", "_step", "iteration", "iter")


def checked_source(text: object) -> str:
    """Where metrics come from.

    Raises:
        ValueError: what would be valid.
    """
    kind, _, path = text.partition(":") if isinstance(text, str) else ("", "", "")
    if text in LINES or (kind in FILES and path):
        return str(text)
    raise ValueError(f"{', '.join(LINES)}, jsonl:PATH or tensorboard:DIR")


class _Row(NamedTuple):
    """What was written of one step, ``at`` a time in seconds, where that is known."""

    values: dict[str, float]
    step: int | None = None
    at: float | None = None


class _FollowedFiles:
    """A file, or the files below a folder, of which only what is written from now on counts."""

    def __init__(self, kind: str, path: Path) -> None:
        self._read = _json_rows if kind == "jsonl" else _event_rows
        self._path = path
        self._before = {file: file.stat().st_size for file in self._found()}

    def _found(self) -> list[Path]:
        files = [self._path] if self._read is _json_rows else sorted(self._path.rglob("*tfevents*"))
        return [file for file in files if file.is_file()]

    def rows(self) -> Iterator[_Row]:
        for file in self._found():
            content, before = file.read_bytes(), self._before.get(file, 0)
            yield from self._read(content[before:] if len(content) >= before else content)


def _json_rows(content: bytes) -> Iterator[_Row]:
    for line in content.splitlines():
        try:
            read = json.loads(line)
        except ValueError:
            continue  # the last line of a program that was ended
        if isinstance(read, dict):
            step = next((read[name] for name in _STEPS if isinstance(read.get(name), int)), None)
            yield _Row({name: value for name, value in _flat("", read) if name not in _STEPS}, step)


def _flat(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{name}/{key}" if name else key, each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


# A file of TensorBoard has records of 8 bytes with a length, 4 of a checksum, an Event, and 4 of a checksum. Numbers
# of fields are those of event.proto, summary.proto and tensor.proto in tensorboard/compat/proto.


def _event_rows(content: bytes) -> Iterator[_Row]:
    at = 0
    while at + 12 <= len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        event = content[at + 12 : at + 12 + size]
        at += size + 16
        if len(event) < size:
            return  # the last record of a program that was ended
        fields: dict[int, Any] = dict(_fields(event))
        summaries = [value for number, value in _fields(fields.get(5, b"")) if number == 1]
        values = dict(filter(None, map(_scalar, summaries)))
        if values:
            yield _Row(values, fields.get(2, 0), struct.unpack("<d", fields[1])[0] if 1 in fields else None)


def _scalar(summary: bytes) -> tuple[str, float] | None:
    fields: dict[int, Any] = dict(_fields(summary))
    name, tensor = fields.get(1, b"").decode(errors="replace"), dict(_fields(fields.get(8, b"")))
    for form, raw in (("<f", fields.get(2)), ("<f", tensor.get(5)), ("<d", tensor.get(6)), ("<f", tensor.get(4))):
        if isinstance(raw, bytes) and len(raw) == struct.calcsize(form):
            return name, struct.unpack(form, raw)[0]
    return None


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message of Protocol Buffers: whole numbers, else bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        size = {1: 8, 5: 4}.get(key & 7)
        if size is None:  # a number, or the length of what follows
            size, at = _varint(message, at)
        if key & 7 == 0:
            yield key >> 3, size
        else:
            yield key >> 3, message[at : at + size]
            at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            break
    return value, at


# What a user looks for

#: Groups of a metric's pattern that are no metrics: a step's number, their total, and the duration of a step.
STEP, TOTAL, STEP_MS, STEP_SEC = "step", "total", "step_ms", "step_sec"
_NO_METRICS = (STEP, TOTAL, STEP_MS, STEP_SEC, "pairs")

#: Metrics that every command has.
RETURNCODE, SEED = "returncode", "seed"

#: Failures that are listed; all are counted.
_LISTED = 20

#: Characters that are kept of a line, and of a metric that is no number.
_SHOWN = 300

#: Characters of a line that expressions of this package look at.
_LOOKED_AT = 4000

#: What a line may say of the process that has written it: ``[rank1]:``, ``[default1]:``, ``[1,2]<stdout>:``.
_RANK = re.compile(r"\b(?:local_)?(?:rank|default|gpu)[ =:#]?(\d{1,5})\b|^\[\d+,(\d{1,5})\]<std", re.IGNORECASE)

#: Before the name of a source, where other expressions have their kind.
_SOURCE = "metrics-from "

#: Stands for lines that do not say which process has written them.
_UNNAMED = -1


@dataclass(frozen=True)
class OutputRules:
    """Regular expressions, each searched for in every line of a command's output.

    Attributes:
        fail_on: a match fails the trial; ``@nan`` and the like are ``DETECTORS``.
        pass_on: if there are any, the trial passes when one of them has matched, whatever the exit code, and fails
            when none has.
        skip_on: a match means that nothing can be said about the workload.
        metric: with named groups; the last value of each is a metric, but for ``step``, ``total``, ``step_ms`` and
            ``step_sec``.
        metrics_from: of ``LINES``, or ``FILES`` with a path.
        fail_on_nonfinite: whether a metric that is NaN or infinite fails the trial; without metrics, any line that says
            such a value.
    """

    fail_on: tuple[str, ...] = ()
    pass_on: tuple[str, ...] = ()
    skip_on: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    metrics_from: tuple[str, ...] = ()
    fail_on_nonfinite: bool = False

    @classmethod
    def of(cls, config: Any) -> OutputRules:
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls)})

    def options(self) -> dict[str, Any]:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items() if value}

    @cached_property
    def compiled(self) -> dict[str, list[tuple[str, re.Pattern[str]]]]:
        """The expressions of each kind, with what stands for them in the record."""
        found = {
            kind: [(f"{kind.replace('_', '-')} '{text}'", re.compile(text)) for text in getattr(self, kind)]
            for kind in ("fail_on", "pass_on", "skip_on", "metric")
        }
        sources = [(f"{_SOURCE}{name}", each) for name in self.metrics_from for each in LINES.get(name, ())]
        return {**found, "metric": [*found["metric"], *sources]}

    @property
    def has_steps(self) -> bool:
        return any(STEP in pattern.groupindex for _, pattern in self.compiled["metric"])


#: Names of the options that say what to look for.
OUTPUT_OPTIONS = tuple(each.name for each in fields(OutputRules))


def checked_regex(text: object) -> str:
    """A regular expression.

    Raises:
        ValueError: what would be valid.
    """
    if not isinstance(text, str) or not text:
        raise ValueError("a regular expression of Python")
    if re.fullmatch(r"@[\w-]+", text) and text[1:] not in DETECTORS:
        raise ValueError(f"a regular expression of Python, or one of {', '.join(f'@{name}' for name in DETECTORS)}")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"a regular expression of Python ({error})") from None
    return text


def checked_metric(text: object) -> str:
    """A regular expression with named groups.

    Raises:
        ValueError: what would be valid.
    """
    checked = checked_regex(text)
    names = set(re.compile(checked).groupindex)
    if not names:
        raise ValueError(r"a regular expression with named groups, such as 'step (?P<step>\d+) loss (?P<loss>\S+)'")
    if RETURNCODE in names or SEED in names:
        raise ValueError(f"a regular expression without groups called {RETURNCODE} or {SEED}: these are there")
    return checked


class _Steps:
    """The steps that one process has said, or several that do not say which of them it is.

    A number that goes back to the first one begins a new count, as that of an epoch. One that goes back to another is
    of another process: then the time of a step is that between the moments at which any process has first said it.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.total: int | None = None
        self.said_ms: list[float] = []
        self.are_mixed = False
        self._first = self._most = 0
        #: Of all that is said, and of when each step is first said.
        self._clock, self._of_first = StepClock(), StepClock()
        self._clock.is_running = self._of_first.is_running = True

    def report(self, step: int, at: float) -> None:
        if self.step is None:
            self._first, self._most = step, step - 1
        elif self._first < step < self.step:
            self.are_mixed = True
        if step > self._most:
            self._most = step
            self._of_first.report(step, at)
        self._clock.report(step, at)
        self.step = step

    @property
    def times_ms(self) -> list[float]:
        return self.said_ms or (self._of_first if self.are_mixed else self._clock).times_ms()


class OutputFindings:
    """What the lines of one command have said so far, and the files that its metrics come from.

    Attributes:
        failures: the first of them, as entries of ``failure_details``.
        reason: the first of them, in a sentence.
        failure_count: number of matches and values that fail the trial.
        first_failure: the step in which the first of them came.
        passed: whether a ``pass_on`` has matched.
        skipped: the line that matches a ``skip_on``; empty for none.
        matched: number of lines that each expression matches.
        detected: by the name of a detector, ``lines``, ``first`` and ``step``; in the order of their first lines.
    """

    def __init__(self, rules: OutputRules) -> None:
        self.rules = rules
        self.failures: list[dict[str, Any]] = []
        self.failure_count = 0
        self.reason = ""
        self.first_failure: int | None = None
        self.passed = False
        self.skipped = ""
        self.detected: dict[str, dict[str, Any]] = {}
        self._patterns = rules.compiled
        self.matched = {name: 0 for each in self._patterns.values() for name, _ in each}
        self._steps: dict[int, _Steps] = {}
        self._metrics: dict[int, dict[str, int | float | str]] = {}
        self._knows_ranks = False
        #: Values that are no numbers, by the name of their metric.
        self._texts: dict[str, str] = {}
        self._files: dict[str, _FollowedFiles] = {}
        for source in rules.metrics_from:
            if source not in LINES:
                kind, _, path = source.partition(":")
                self._files[f"{_SOURCE}{source}"] = _FollowedFiles(kind, Path(*fill_in([path], os.environ)))

    @property
    def _told(self) -> _Steps:
        return self._steps[min(self._steps)] if self._steps else _Steps()

    @property
    def step(self) -> int | None:
        """The last one, of the process with the lowest rank; ``None`` before the first."""
        return self._told.step

    @property
    def total(self) -> int | None:
        return self._told.total

    @property
    def step_times_ms(self) -> list[float]:
        """Durations that lines have said; without any, the times between steps, per step."""
        return self._told.times_ms

    @property
    def metrics(self) -> dict[str, int | float | str]:
        """Last value of each; of several processes, that of the lowest rank that has said it."""
        return {
            name: value for rank in sorted(self._metrics, reverse=True) for name, value in self._metrics[rank].items()
        }

    def take(self, line: str, at: float, rank: int | None = None) -> bool:
        """One line, which came ``at`` a time in seconds; whether it has said a step.

        ``rank``: of the process that has written it, where each has an output of its own.
        """
        line = plain_line(line)
        self._knows_ranks = rank is not None
        if rank is None:
            found_rank = _RANK.search(line[:_LOOKED_AT])
            rank = int(found_rank[1] or found_rank[2]) if found_rank else _UNNAMED
        steps = [
            self._take_match(found, name, rank, line, at)
            for name, pattern in self._patterns["metric"]
            for found in pattern.finditer(line[:_LOOKED_AT] if name.startswith(_SOURCE) else line)
        ]
        names = detected_in(line[:_LOOKED_AT])
        for name in names:
            self._detect(name, rank, line)
        for text, (name, pattern) in zip(self.rules.fail_on, self._patterns["fail_on"], strict=True):
            if text[1:] in names if text[0] == "@" and text[1:] in DETECTORS else pattern.search(line):
                self.matched[name] += 1
                self._fail(rank, line.strip()[:_SHOWN], f"its output matches {text!r}", line)
        if "nan" in names and self.rules.fail_on_nonfinite and not (self.rules.metric or self.rules.metrics_from):
            self._fail(rank, line.strip()[:_SHOWN], "its output says nan", line)
        self.passed = self._matches("pass_on", line) or self.passed
        if self._matches("skip_on", line):
            self.skipped = self.skipped or line.strip()[:_SHOWN]
        return any(steps)

    def _matches(self, kind: str, line: str) -> bool:
        found = [name for name, pattern in self._patterns[kind] if pattern.search(line)]
        for name in found:
            self.matched[name] += 1
        return bool(found)

    def _take_match(self, found: re.Match[str], name: str, rank: int, line: str, at: float) -> bool:
        self.matched[name] += 1
        groups = {group: text for group, text in found.groupdict().items() if text is not None}
        step = number(groups.get(STEP, ""))
        total = number(groups.get(TOTAL, ""))
        told = self._steps.get(rank) or _Steps()
        if isinstance(step, int) and not (name == f"{_SOURCE}hf" and told.total not in (None, total)):
            self._steps[rank] = told  # another bar of the Trainer is that of an evaluation
            told.report(step, at)
            told.total = total if isinstance(total, int) else told.total
        for group, factor in ((STEP_MS, 1.0), (STEP_SEC, 1000.0)):
            duration = number(groups.get(group, ""))
            if duration is not None and 0 <= duration < math.inf:
                self._steps.setdefault(rank, told).said_ms.append(duration * factor)
        for group in (group for group in groups if group not in _NO_METRICS):
            value = number(groups[group])
            if value is None:
                self._texts[group] = groups[group][:_SHOWN]
            self._take_value(group, groups[group][:_SHOWN] if value is None else value, rank, line)
        for pair in _PAIR.finditer(groups.get("pairs", "")):
            value = number(pair["value"])
            if value is not None and pair["name"] not in (RETURNCODE, SEED):
                self._take_value(pair["name"], value, rank, line)
        return isinstance(step, int) and told is self._told

    def _take_value(self, name: str, value: float | str, rank: int, line: str) -> None:
        self._metrics.setdefault(rank, {})[name] = value
        if isinstance(value, str) or math.isfinite(value):
            return
        if self.rules.fail_on_nonfinite:
            self._fail(rank, f"{name} is {value}")
        if not line or "nan" not in detected_in(line[:_LOOKED_AT]):
            self._detect("nan", rank, line or f"{name} is {value}")

    def read_files(self) -> None:
        """Take in what the files say that metrics come from, once the command has ended."""
        for name, files in self._files.items():
            self.matched[name] = 0
            told = _Steps()
            has_steps = bool(self._steps)  # lines say them
            for row in files.rows():
                self.matched[name] += 1
                if row.step is not None and not has_steps:
                    self._steps.setdefault(_UNNAMED, told).report(row.step, row.at or 0.0)
                for metric, value in row.values.items():
                    self._take_value(metric, value, _UNNAMED, "")

    def report(self) -> dict[str, Any]:
        """For the record; ``warnings`` are about the trial, whatever has become of it."""
        warnings = [f"its metric {name} is no number: {text[:80]!r}" for name, text in self._texts.items()]
        if any(steps.are_mixed for steps in self._steps.values()):
            warnings.append(
                "step numbers go back, as those of several processes in one pipe do; "
                "a step's time is that until any of them has said the next"
            )
        return {"matched": self.matched, "detected": self.detected, "warnings": warnings}

    def steps_of(self, rank: int) -> tuple[int | None, int | None]:
        """The last step of a rank, and of how many."""
        told = self._steps.get(rank, _Steps())
        return told.step, told.total

    def _step_of(self, rank: int) -> int | None:
        return self._steps[rank].step if rank in self._steps else self.step

    def _detect(self, name: str, rank: int, line: str) -> None:
        step = self._step_of(rank)
        where = {} if step is None else {"step": step}
        self.detected.setdefault(name, {"lines": 0, "first": line.strip()[:_SHOWN], **where})["lines"] += 1

    def _fail(self, rank: int, what: str, why: str = "", line: str = "") -> None:
        step = self._step_of(rank)
        is_known = self._knows_ranks and rank != _UNNAMED
        if self.failure_count == 0:
            self.first_failure = step if step is not None and step >= 0 else None
            where = "" if step is None else f" at step {step}"
            self.reason = f"{why or what}{where}" + (f": {line.strip()[:_SHOWN]}" if line else "")
            self.reason = f"rank {rank}: {self.reason}" if is_known else self.reason
        self.failure_count += 1
        if len(self.failures) < _LISTED:
            of = {"rank": rank} if is_known else {}
            self.failures.append({"message": what, **({} if step is None else {"step": step}), **of})


# What a user could look for

#: What counts steps, the finest first, and its number, perhaps with their total.
_COUNTERS = ("global[ _]?step", "steps?", "iterations?", "iters?", "batch(?:es)?", "epochs?")
_COUNT = r"(?P<before>\b(?:{})[\"']?[^\w\n]{{0,3}})(?P<step>\d+)(?:(?P<of> ?/ ?| of )(?P<total>\d+))?"
_STEP_LINES = tuple(re.compile(_COUNT.format(word), re.IGNORECASE) for word in _COUNTERS)

#: A name with a value after it; without a sign between them, the name is one of a measured value.
_NAMED = re.compile(
    r"(?P<name>[A-Za-z_][\w/.-]*)(?P<sign>['\"]? ?[=:] ?['\"]?| +)"
    r"(?P<value>[-+]?(?:\d[\d_]*\.?\d*(?:e[-+]?\d+)?|nan|inf)(?: ?(?P<unit>ms|s)\b)?)(?![\w/])",
    re.IGNORECASE,
)

#: Metrics that are guessed of one line.
_MOST_GUESSED = 4


def guessed_options(lines: Iterable[str]) -> dict[str, str]:
    """How the steps of a program can be read from what it has printed: ``metrics-from`` or ``metric``, or neither.

    One of ``LINES`` where it says two steps at least; else an expression for the kind of line that does so most
    often, by a word that counts (``step``, ``iter``, ``epoch``) and names with values behind it.
    """
    shown = list(lines)
    for name in ("nanogpt", "hf", "lightning", "tqdm"):
        said = [line for line in shown if name != "lightning" or "it/s" in line]
        steps = {found["step"] for line in said for found in LINES[name][0].finditer(line)}
        if len(steps) > 1 and (name != "hf" or any(map(LINES[name][1].search, shown))):
            return {"metrics-from": name}
    found: dict[str, set[str]] = {}
    for line in shown:
        count = next(filter(None, (pattern.search(line) for pattern in _STEP_LINES)), None)
        if count is not None:
            found.setdefault(_expression(line, count), set()).add(count["step"])
    best = max(found, key=lambda text: (len(found[text]), len(text)), default=None)
    return {"metric": best} if best is not None and len(found[best]) > 1 else {}


def _expression(line: str, count: re.Match[str]) -> str:
    text = rf"{_spaced(count['before'])}(?P<step>\d+)"
    if count["total"]:
        text += rf"{_spaced(count['of'])}(?P<total>\d+)"
    names: set[str] = set()
    for pair in _NAMED.finditer(line, count.end()):
        name = re.sub(r"\W", "_", pair["name"])
        is_time = re.fullmatch(r"(?:step_?)?(?:time|dt|took|ms)(?:_ms)?", name, re.IGNORECASE) is not None
        if is_time and (pair["unit"] or "ms" in name.lower()):
            name = "step_ms" if pair["unit"] != "s" else "step_sec"
        elif is_time or pair["unit"] or (not pair["sign"].strip() and not _MEASURED.search(pair["name"])):
            continue
        if name.lower() in (*names, "step", "total", "returncode", "seed") or len(names) == _MOST_GUESSED:
            continue
        names.add(name.lower())
        text += rf".*?\b{re.escape(pair['name'])}{_spaced(pair['sign'])}(?P<{name}>\S+)"
    return text


def _spaced(text: str) -> str:
    return re.sub(r"(?:\\ )+", " *", re.escape(text))
