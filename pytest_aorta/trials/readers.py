"""How training loops write their steps and metrics: one table of formats, and files; and a guess where none fits."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

#: Groups of an expression that are no metrics: a step's number, their total, the duration of a step, and a part of the
#: line with names and values.
STEP, TOTAL, STEP_MS, STEP_SEC, PAIRS = "step", "total", "step_ms", "step_sec", "pairs"
NO_METRICS = (STEP, TOTAL, STEP_MS, STEP_SEC, PAIRS)

_BAR = r"\d+%\|[^|]*\| *(?P<step>\d+)/(?P<total>\d+) \[(?P<pairs>\d+:\d[^\]]*)"


class Format(NamedTuple):
    """What one kind of line says, and such a line."""

    name: str
    expression: re.Pattern[str]
    example: str


#: A format is a line with its name and an expression, and one as its program writes it. ``BAR`` is a bar of tqdm. The
#: more a line has of its own, the earlier it comes: of several formats that fit a program, the first one counts.
_TABLE = r"""
torchtitan  \bstep: *(?P<step>\d+) +(?P<pairs>(?:\w+: +\S+ +)?loss: .*)
[rank0]:[titan] 2025-05-18 16:04:46 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  tps: 7,282  mfu: 0.17%
megatron    iteration +(?P<step>\d+)/ *(?P<total>\d+) \|(?:.*?iteration \(ms\): (?P<step_ms>[\d.]+) \|)?(?P<pairs>.*)
 iteration      122/  250000 | elapsed time per iteration (ms): 86545.2 | lm loss: 1.0E+01 | grad norm: 0.231 |
deepspeed   \bsteps: (?P<step>\d+) (?P<pairs>loss: \S+) iter time \(s\): (?P<step_sec>[\d.]+)
steps: 20 loss: 1.9375 iter time (s): 0.985 samples/sec: 16.242
deepspeed   \[Rank \d+\] step=(?P<step>\d+), (?P<pairs>.*)
[2025-04-28 06:51:46,110] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=6, lr=[9.65e-06], mom=[(0.9, 0.95)]
nanogpt     iter (?P<step>\d+): (?P<pairs>loss [^,\s]+), time (?P<step_ms>[\d.]+)ms
iter 10: loss 4.2345, time 12.30ms, mfu -100.00%
nanogpt     step \d+: train loss (?P<train_loss>[^,\s]+), val loss (?P<val_loss>[^,\s]+)
step 0: train loss 10.9, val loss 10.8
mmengine    Epoch ?(?:\(train\))? *\[\d+\]\[ *(?P<step>\d+)/(?P<total>\d+)\](?P<pairs>.*)
2025/05/02 - mmengine - INFO - Epoch(train)  [1][  50/7330]  lr: 1.9e-03  eta: 1:20:30  time: 0.38  loss: 1.0310
mmengine    - INFO - Iter ?(?:\(train\))? *\[ *(?P<step>\d+)/(?P<total>\d+)\](?P<pairs>.*)
2025/05/02 - mmengine - INFO - Iter(train) [   50/80000]  lr: 9.9e-03  eta: 1:20:30  data_time: 0.0089  loss: 2.6201
detectron2  \beta: .*?\biter: (?P<step>\d+) (?P<pairs>.*)
[08/22 10:00:01 d2.utils.events]:  eta: 0:12:34  iter: 19  total_loss: 1.25  loss_cls: 0.4  time: 0.2100  lr: 0.0003
fairseq     epoch \d+: +(?P<step>\d+) / (?P<total>\d+) (?P<pairs>.*)
2025-08-20 | INFO | train_inner | epoch 001:    100 / 1102 loss=14.2, ppl=18929.4, wps=12000, gnorm=2.5, lr=1.2e-05
fairseq     epoch \d+ \| (?P<pairs>.*\bloss .*)
| epoch 001 | valid on 'valid' subset | loss 10.1 | nll_loss 9.3 | ppl 612.5 | num_updates 1102
keras       \b(?P<step>\d+)/(?P<total>\d+) (?:\[[=>.]+\]|[\u2501\u2500]+)(?P<pairs>.* - .*)
1875/1875 [==============================] - 3s 1ms/step - loss: 0.2203 - accuracy: 0.9344
jax         \] \[(?P<step>\d+)\] (?P<pairs>.*=.*)
I0520 10:00:00.123456 140 logging_writer.py:48] [100] learning_rate=0.1, loss=0.3012, accuracy=0.91
jax         completed step: (?P<step>\d+), seconds: (?P<step_sec>[\d.]+), (?P<pairs>.*)
completed step: 5, seconds: 0.512, TFLOP/s/device: 120.1, Tokens/s/device: 2500.0, loss: 10.862
jax         \bepoch: *(?P<step>\d+), (?P<pairs>train_loss: .*)
epoch:  1, train_loss: 0.2132, train_accuracy: 93.61, test_loss: 0.0689, test_accuracy: 97.80
lightning   Epoch \d+(?:/\d+)?\b.*?(?P<step>\d+)/(?P<total>\d+)\s(?P<pairs>.*(?:it/s|s/it).*)
Epoch 1:  75%|#######5  | 3/4 [00:08<00:02,  2.77s/it, v_num=0, train_loss_step=0.250]
hf          ^\s*BAR
 14%|#4        | 381/2724 [13:04:45<85:52:52, 131.96s/it]
hf          (?P<pairs>\{'\w+': .*\})
{'loss': '3.047', 'grad_norm': 1.397, 'learning_rate': '3.75e-05', 'epoch': '0.5'}
jsonl       (?P<pairs>\{(?:.*?[{ ,])?"(?:global_|_)?(?:step|iter|iteration)": *(?P<step>\d+)\b.*\})
{"step": 4, "train/loss": 0.5, "lr": 0.001}
accelerate  \b[Ss]teps: +BAR
Steps:  12%|#2        | 12/100 [00:05<00:36,  2.4it/s, lr=1e-5, step_loss=0.12]
tqdm        BAR
train:  50%|#####     | 5/10 [00:01<00:01,  4.90it/s, loss=0.5, lr=1e-3]
"""


def _read_table(lines: list[str]) -> Iterator[Format]:
    for row, example in zip(lines[::2], lines[1::2], strict=True):
        name, expression = row.split(maxsplit=1)
        yield Format(name, re.compile(expression.replace("BAR", _BAR)), example)


FORMATS = tuple(_read_table(_TABLE.strip("\n").splitlines()))

#: Names of formats, in the order of the table.
NAMES = tuple(dict.fromkeys(each.name for each in FORMATS))

#: What files say, and whatever of ``FORMATS`` lines are in.
FILES, AUTO = ("jsonl", "tensorboard"), "auto"

_PAIR = re.compile(
    r"(?<![\w./])(?:(?P<name>[^\W\d][\w./()-]*(?: [^\W\d(][\w./()-]*){0,5})['\"]?\s*[=:]\s*"
    r"|(?P<word>[^\W\d][\w./()-]*)\s+(?=[-+]?(?:[\d.]|nan\b|inf\b)))['\"]?(?P<value>\d{1,3}(?:,\d{3})+(?![\d,])|[^\s,;|}\]'\"]+)",
    re.IGNORECASE,
)


def pairs_in(text: str) -> Iterator[tuple[str, str]]:
    """Read names and values: ``lm loss: 1.0E+01 | tps: 7,282`` has ``lm_loss`` and ``tps``."""
    for pair in _PAIR.finditer(text):
        yield (pair["name"] or pair["word"]).replace(" ", "_"), pair["value"]


def checked_source(text: object) -> str:
    """Where metrics come from.

    Raises:
        ValueError: what would be valid.
    """
    kind, _, path = text.partition(":") if isinstance(text, str) else ("", "", "")
    if text == AUTO or text in NAMES or (kind in FILES and path):
        return str(text)
    raise ValueError(f"{', '.join((AUTO, *NAMES))}, jsonl:PATH or tensorboard:DIR")


#: Names of the number of a step in lines of JSON.
_STEPS = ("step", "global_step", "_step", "iteration", "iter")


class MetricRow(NamedTuple):
    """What was written of one step, ``at`` a time in seconds, where that is known."""

    values: dict[str, float]
    step: int | None = None
    at: float | None = None


class FollowedFiles:
    """A file, or the files below a folder, of which only what is written from now on counts."""

    def __init__(self, kind: str, path: Path) -> None:
        self._read = _json_rows if kind == "jsonl" else _event_rows
        self._path = path
        self._before = {file: file.stat().st_size for file in self._found()}

    def _found(self) -> list[Path]:
        files = [self._path] if self._read is _json_rows else sorted(self._path.rglob("*tfevents*"))
        return [file for file in files if file.is_file()]

    def rows(self) -> Iterator[MetricRow]:
        for file in self._found():
            content, before = file.read_bytes(), self._before.get(file, 0)
            yield from self._read(content[before:] if len(content) >= before else content)


def _json_rows(content: bytes) -> Iterator[MetricRow]:
    for line in content.splitlines():
        try:
            read = json.loads(line)
        except ValueError:
            continue  # the last line of a program that was ended
        if isinstance(read, dict):
            step = next((read[name] for name in _STEPS if isinstance(read.get(name), int)), None)
            yield MetricRow({name: value for name, value in _flat("", read) if name not in _STEPS}, step)


def _flat(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{name}/{key}" if name else key, each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


# A file of TensorBoard has records of 8 bytes with a length, 4 of a checksum, an Event, and 4 of a checksum. Numbers
# of fields are those of event.proto, summary.proto and tensor.proto in tensorboard/compat/proto.


def _event_rows(content: bytes) -> Iterator[MetricRow]:
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
            yield MetricRow(values, fields.get(2, 0), struct.unpack("<d", fields[1])[0] if 1 in fields else None)


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


# What a user could look for

#: What counts steps, the finest first, and its number, perhaps with their total.
_COUNTERS = ("global[ _]?step", "steps?", "iterations?", "iters?", "batch(?:es)?", "epochs?")
_COUNT = r"(?P<before>\b(?:{})[\"']?(?:[^\w\n]{{0,3}}|[:=]? +))(?P<step>\d+)(?:(?P<of> ?/ *| of )(?P<total>\d+))?"
#: Of an epoch, there are parts; a fraction of anything else is no count: ``ms/batch 5.23``.
_STEP_LINES = tuple(
    re.compile(_COUNT.format(word) + (r"(?!\.?\d)" if word != "epochs?" else ""), re.IGNORECASE) for word in _COUNTERS
)
_ANY_COUNT = re.compile(_COUNT.format("|".join(_COUNTERS)), re.IGNORECASE)

#: A name with a value after it; without a sign between them, another pair or nothing follows.
_NAMED = re.compile(
    r"(?P<name>[A-Za-z_][\w/.-]*)(?P<sign>['\"]? *[=:] *['\"]?| +)"
    r"(?P<value>[-+]?(?:\d[\d_]*\.?\d*(?:e[-+]?\d+)?|nan|inf)(?: ?(?P<unit>ms|s)\b)?)(?![\w/])"
    r"(?P<is_last>(?=\s*(?:[,;|)]|$)|\s+[A-Za-z_][\w/.-]*[ =:]+(?:[-+\d.]|nan\b|inf\b)))?",
    re.IGNORECASE,
)

#: Metrics that are guessed of one line.
_MOST_GUESSED = 4

#: Names of values that may be infinite, but for these.
_NEVER_INFINITE = re.compile("loss|norm|grad", re.IGNORECASE)


def said_step(line: str) -> int | None:
    """The number of a step that a line has, in any way; of an epoch if there is none else."""
    if _ANY_COUNT.search(line) is None:
        return None
    return next((int(match["step"]) for each in _STEP_LINES if (match := each.search(line))), None)


def guessed_options(lines: Iterable[str]) -> dict[str, str]:
    """How the steps of a program can be read from what it has printed: ``metrics-from`` or ``metric``, or neither.

    The first of ``FORMATS`` in which it says two steps at least; else an expression for the kind of line that does so
    most often, by a word that counts (``step``, ``iter``, ``epoch``) and names with values behind it. And names of
    metrics that are infinite on purpose, such as the best value so far: ``allow-nonfinite``.
    """
    shown = list(lines)
    infinite = {
        name
        for line in shown
        if "inf" in line.lower()
        for name, value in pairs_in(line)
        if re.fullmatch("[-+]?inf(?:inity)?", value, re.IGNORECASE) and not _NEVER_INFINITE.search(name)
    }
    allowed = {"allow-nonfinite": ",".join(sorted(infinite))} if infinite else {}
    for name in NAMES:
        rows = [each.expression for each in FORMATS if each.name == name]
        matches_of_rows = [[match for line in shown if (match := row.search(line))] for row in rows]
        steps = {match["step"] for matches in matches_of_rows for match in matches if match.re.groupindex.get(STEP)}
        # Without a terminal, the Trainer has no bar, but it says the epoch.
        is_of_trainer = name == "hf" and len([match for match in matches_of_rows[1] if "'epoch':" in match[0]]) > 1
        if is_of_trainer or (len(steps) > 1 and (name != "hf" or all(matches_of_rows))):
            return {"metrics-from": name, **allowed}
    lines_of: dict[str, set[str]] = {}
    for line in shown:
        count = next(filter(None, (pattern.search(line) for pattern in _STEP_LINES)), None)
        if count is not None:
            lines_of.setdefault(_expression(line, count, infinite), set()).add(count["step"])
    best = max(lines_of, key=lambda text: (len(lines_of[text]), len(text)), default=None)
    return {"metric": best} if best is not None and len(lines_of[best]) > 1 else {}


def _expression(line: str, count: re.Match[str], infinite: set[str]) -> str:
    text = rf"{_spaced(count['before'])}(?P<step>\d+)"
    if count["total"]:
        text += rf"{_spaced(count['of'])}(?P<total>\d+)"
    names: set[str] = set()
    for pair in _NAMED.finditer(line, count.end()):
        name = re.sub(r"\W", "_", pair["name"])
        is_time = re.fullmatch(r"(?:step_?)?(?:time|dt|took|ms)(?:_ms)?", name, re.IGNORECASE) is not None
        if is_time and (pair["unit"] or "ms" in name.lower()):
            name = "step_ms" if pair["unit"] != "s" else "step_sec"
        elif is_time or pair["unit"] or (not pair["sign"].strip() and pair["is_last"] is None):
            continue
        if name.lower() in (*names, "step", "total", "returncode", "seed") or len(names) == _MOST_GUESSED:
            continue
        if pair["name"] in infinite:
            continue
        names.add(name.lower())
        text += rf".*?\b{re.escape(pair['name'])}{_spaced(pair['sign'])}(?P<{name}>\S+)"
    return text


def _spaced(text: str) -> str:
    return re.sub(r"(?:\\ )+", " *", re.escape(text))
