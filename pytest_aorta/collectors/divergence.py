"""Finds which of several equal trials differ, where they differ first, and which operator caused it."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.collectors.contract import Collector, CollectorError, CollectorSummary, Value, step_name

#: Characters of a hash.
_HASH = 8

#: File that says how the trial numbers its steps, where its first one is not 1.
_FIRST_STEP = "first_step.json"

#: Texts of events by kind; ``{}`` is the module or parameter.
_PHASES = {
    "initial": "parameter `{}` before the first step",
    "input": "the input of `{}`",
    "forward": "the output of `{}`",
    "backward": "the gradient of the output of `{}`",
    "gradient": "the gradient of parameter `{}`",
    "parameter": "parameter `{}` after the optimizer's step",
}


class DivergenceCollector(Collector):
    """Which trials compute something else than the others, and where first: step, rank, module, operator."""

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {
        "mode": ("hash", "hash: bit by bit; statistics: norm and largest absolute value of each tensor"),
        "tolerance": (1e-3, "relative difference of statistics that is none"),
        "zoom": (5, "trials that are run again to find the operator; 0 for none"),
        "at": ("", "file that says where operators are recorded; the zoom writes it"),
    }
    in_process: ClassVar[Path | None] = Path(__file__).with_name("in_process") / "divergence.py"

    def __init__(self, given: Mapping[str, Value]) -> None:
        super().__init__(given)
        if self.given["mode"] not in ("hash", "statistics"):
            raise CollectorError(f"--aorta-collect divergence:mode={self.given['mode']}: expected hash or statistics")

    def summarize(self, folder: Path, ranks: Sequence[int]) -> CollectorSummary:
        """The extent of the recording; differences appear only when trials are compared."""
        trial = read_trial(folder)
        if not trial.ranks:
            return CollectorSummary("nothing to compare: no module of torch was called, no optimizer made a step")
        data = {"steps": trial.steps, "ranks": len(trial.ranks), "mode": self.given["mode"]}
        if self.first_step != 1:
            (folder / _FIRST_STEP).write_text(json.dumps(self.first_step))
        return CollectorSummary(data=data, artifacts=sorted(path for path in folder.iterdir() if path.is_file()))


# What a trial has recorded


@dataclass(frozen=True)
class Step:
    """One step of a rank: its number, its events in order, and their hashes or statistics."""

    number: int
    events: tuple[str, ...]
    values: Any

    def row(self) -> list[tuple[str, Any]]:
        values = self.values
        if isinstance(values, str):
            values = [values[start : start + _HASH] for start in range(0, len(values), _HASH)]
        return list(zip(self.events, values, strict=False))


@dataclass(frozen=True)
class StepTraces:
    """Recorded steps of a trial by rank.

    Attributes:
        tolerance: relative, for statistics; ``None`` for hashes.
        first_step: the number that the trial gives its first step, if that is known.
    """

    ranks: Mapping[int, Sequence[Step]]
    tolerance: float | None = None
    first_step: int | None = 1

    @property
    def steps(self) -> int:
        return max((len(steps) for steps in self.ranks.values()), default=0)

    def up_to(self, ordinal: int) -> StepTraces:
        return replace(self, ranks={rank: steps[: ordinal + 1] for rank, steps in self.ranks.items()})


def read_trial(folder: Path) -> StepTraces:
    """Read a trial's recording in ``collect/divergence``; it has no ranks if there is none."""
    ranks: dict[int, list[Step]] = {}
    tolerance = None
    for rank in sorted(int(file.stem.removeprefix("rank_")) for file in folder.glob("rank_*.jsonl")):
        steps: list[Step] = []
        shapes: list[tuple[str, ...]] = []
        for line in trace_file(folder, rank).read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # the end of a process that was killed
                break
            if "step" in entry:
                steps.append(Step(entry["step"], shapes[entry["events"]], entry["values"]))
            elif "events" in entry:
                shapes.append(tuple(entry["events"]))
            else:
                tolerance = entry["tolerance"]
        if steps:
            ranks[rank] = steps
    told = folder / _FIRST_STEP
    return StepTraces(ranks, tolerance, json.loads(told.read_text()) if told.exists() else 1)


def trace_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.jsonl"


# Where trials differ


@dataclass(frozen=True)
class FirstDifference:
    """The first difference of a trial from the majority.

    Attributes:
        ordinal: index of the step among recorded ones, from 0.
        step: its number, counted from 1.
        event: what differs, as ``forward:layers.3``.
        after: the event before it, up to which all is equal; empty at the begin of the step.
        number: of the event in its step.
        other: what the others do at this place, where that is another event.
        first_step: the number that the trial gives its first step, if that is known.
    """

    rank: int
    ordinal: int
    step: int
    event: str
    after: str
    number: int
    other: str = ""
    first_step: int | None = 1

    @property
    def order(self) -> tuple[int, int, int]:
        return self.ordinal, self.number, self.rank

    def text(self, ranks: int = 1) -> str:
        where = f"{step_name(self.step, self.first_step)}, " + (f"rank {self.rank}, " if ranks > 1 else "")
        if self.other:
            return f"{where}where it has {described(self.event)} and the others have {described(self.other)}"
        return where + described(self.event)


def described(event: str) -> str:
    """``the output of layers.3, call 2`` for the event ``forward:layers.3#2``."""
    phase, _, name = event.partition(":")
    name, _, call = name.partition("#")
    return _PHASES[phase].format(name) + (f", call {call}" if call else "") if phase in _PHASES else "nothing more"


@dataclass
class TraceComparison:
    """Trials that were compared.

    Attributes:
        equal: trials that agree with the majority as far as they ran; the first is the reference.
        places: first differences of all other trials.
    """

    equal: list[str] = field(default_factory=list)
    places: dict[str, FirstDifference] = field(default_factory=dict)

    @property
    def first(self) -> tuple[str, FirstDifference] | None:
        return min(self.places.items(), key=lambda each: each[1].order, default=None)


def compare_trials(trials: Mapping[str, StepTraces]) -> TraceComparison:
    """Compare trials step by step; at each difference, the minority drops out.

    A trial that ended early agrees as far as it ran. In a tie, the first trial counts as right.
    """
    comparison = TraceComparison(list(trials))
    tolerance = next((trial.tolerance for trial in trials.values() if trial.tolerance is not None), None)
    ordinal = 0
    while len(comparison.equal) > 1:
        going = [name for name in comparison.equal if trials[name].steps > ordinal]
        if len(going) < 2:
            break
        places: dict[str, FirstDifference] = {}
        for rank in sorted({rank for name in going for rank in trials[name].ranks}):
            recorded = {name: trials[name].ranks.get(rank, ()) for name in going}
            steps = {name: each[ordinal] for name, each in recorded.items() if len(each) > ordinal}
            if len({(step.events, str(step.values)) for step in steps.values()}) < 2:
                continue
            last = {name for name in steps if len(recorded[name]) == ordinal + 1}
            departed = _departures(steps, last, rank, ordinal, tolerance)
            for name, place in departed.items():
                if name not in places or place.order < places[name].order:
                    places[name] = replace(place, first_step=trials[name].first_step)
        if len(places) == len(comparison.equal):  # in each rank, others are fewer
            places.pop(max(places, key=lambda name: places[name].order))
        comparison.places.update(places)
        comparison.equal = [name for name in comparison.equal if name not in places]
        ordinal += 1
    return comparison


def _departures(
    steps: Mapping[str, Step], last: set[str], rank: int, ordinal: int, tolerance: float | None
) -> dict[str, FirstDifference]:
    """The first difference of each trial that leaves the majority in a step; ``last``: trials that end in it."""
    rows = {name: step.row() for name, step in steps.items()}
    places: dict[str, FirstDifference] = {}
    number = 0
    while True:
        here = {
            name: row[number] if number < len(row) else ("", None)
            for name, row in rows.items()
            if name not in places and (number < len(row) or name not in last)
        }
        if all(event == "" for event, _ in here.values()):
            return places
        majority = _majority(list(here.values()), tolerance)
        others = [name for name, value in here.items() if not is_same(value, majority, tolerance)]
        for name in others:
            event, after = here[name][0], rows[name][number - 1][0] if number else ""
            other = majority[0] if majority[0] != event else ""
            places[name] = FirstDifference(rank, ordinal, steps[name].number, event, after, number, other)
        number += 1


def _majority(values: list[tuple[str, Any]], tolerance: float | None) -> tuple[str, Any]:
    if tolerance is None:
        counts: Counter[Hashable] = Counter(values)
        return max(values, key=lambda value: counts[value])
    if all(is_same(value, values[0], tolerance) for value in values):
        return values[0]
    return max(values, key=lambda one: sum(is_same(one, other, tolerance) for other in values))


def is_same(one: tuple[str, Any], other: tuple[str, Any], tolerance: float | None) -> bool:
    """Whether two events with their hashes, or with statistics within ``tolerance``, are equal."""
    if tolerance is None or one[0] != other[0] or one[1] is None or other[1] is None:
        return one == other
    return all(_close(float(a), float(b), tolerance) for a, b in zip(one[1], other[1], strict=True))


def _close(one: float, other: float, tolerance: float) -> bool:
    if math.isnan(one) or math.isnan(other):  # which no comparison of numbers would see
        return math.isnan(one) and math.isnan(other)
    return one == other or abs(one - other) <= tolerance * max(abs(one), abs(other))


# The operator


@dataclass(frozen=True)
class Operators:
    ordinal: int
    calls: list[dict[str, Any]]
    kept: Mapping[str, tuple[int, int]]
    tensors: Path

    def bytes_of(self, digest: str) -> bytes | None:
        if digest not in self.kept:
            return None
        start, size = self.kept[digest]
        with self.tensors.open("rb") as file:
            file.seek(start)
            return file.read(size)


def read_operators(folder: Path) -> Operators | None:
    for file in folder.glob("*.operators.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        stem = file.name.removesuffix(".operators.json")
        return Operators(content["ordinal"], content["operators"], content["kept"], file.with_name(f"{stem}.tensors"))
    return None


@dataclass(frozen=True)
class OperatorDifference:
    sentence: str
    data: Mapping[str, Any]


def compare_operators(one: Operators, other: Operators, after: str) -> OperatorDifference:
    """Find the first operator that differs in ``other``; both were recorded from the event ``after`` on."""
    for number, (a, b) in enumerate(zip(one.calls, other.calls, strict=False)):
        where = _where(b)
        data = {"operator": b["operator"], "module": b["module"], "line": b["line"], "number": number}
        if a["operator"] != b["operator"] or [each[1:] for each in a["inputs"]] != [each[1:] for each in b["inputs"]]:
            same = a["operator"] == b["operator"]
            what = "with inputs of another shape" if same else f"where the others call {a['operator']}"
            return OperatorDifference(f"it calls {b['operator']}{where} {what}", {**data, "kind": "other_call"})
        if a["inputs"] != b["inputs"]:
            argument = next(i for i, (x, y) in enumerate(zip(a["inputs"], b["inputs"], strict=True)) if x != y)
            amount, numbers = _amount(one, other, a["inputs"][argument], b["inputs"][argument])
            # The last operator before that had a tensor with this content as its result.
            makers = [
                call for call in one.calls[:number] if a["inputs"][argument][0] in [it[0] for it in call["outputs"]]
            ]
            before = makers[-1] if makers else None
            text = f"{amount} of input {argument} of {b['operator']}{where}"
            if before is None:
                text += ", which none of the recorded operators has made"
            else:
                maker = before["operator"] or described(after)
                text += (
                    f"; it was equal as {maker}: something else wrote to it in between, such as another thread or "
                    "stream, or code that is no operator of torch"
                )
            made_by = (before["operator"] or after) if before else None
            return OperatorDifference(text, {**data, **numbers, "kind": "changed_in_between", "made_by": made_by})
        if a["outputs"] != b["outputs"]:
            result = next(i for i, (x, y) in enumerate(zip(a["outputs"], b["outputs"], strict=True)) if x != y)
            amount, numbers = _amount(one, other, a["outputs"][result], b["outputs"][result])
            text = f"{b['operator']}{where} makes something else of equal inputs: {amount}"
            return OperatorDifference(text, {**data, **numbers, "kind": "operator"})
    if len(one.calls) != len(other.calls):
        return OperatorDifference(
            f"it calls {len(other.calls)} operators, the others {len(one.calls)}", {"kind": "other_call"}
        )
    return OperatorDifference(
        f"all {len(one.calls)} operators between the two have equal inputs and results: what differs was not made by "
        "an operator of torch in this thread",
        {"kind": "no_operator"},
    )


def _where(call: Mapping[str, Any]) -> str:
    places = [f"in `{call['module']}`"] if call["module"] else []
    places += [f"of {call['node']}"] if call["node"] else []
    places += [f"({call['line']})"] if call["line"] else []
    return "".join(f" {place}" for place in places)


def _amount(one: Operators, other: Operators, a: Sequence[Any], b: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    kind, shape = b[1], b[2]
    x, y = one.bytes_of(a[0]), other.bytes_of(b[0])
    if a[1:] != b[1:]:
        return f"{a[1]} {a[2]} became {kind} {shape}", {}
    if x is None or y is None:
        return f"{kind} {shape}, too large to be kept", {"shape": shape, "dtype": kind}
    differing, largest, first, values = 0, 0.0, None, (0.0, 0.0)
    for number, (p, q) in enumerate(zip(_numbers(x, kind), _numbers(y, kind), strict=True)):
        if p == q or (p != p and q != q):
            continue
        differing += 1
        if first is None:
            first, values = number, (p, q)
        distance = abs(p - q)
        largest = distance if distance > largest or distance != distance else largest
    total = math.prod(shape)
    if first is None:
        return f"the bits of {kind} {shape} differ, its numbers do not", {"shape": shape, "dtype": kind, "differing": 0}
    place = _index(first, shape)
    data = {
        **{"shape": shape, "dtype": kind, "elements": total, "differing": differing, "first": place},
        **{"values": list(values), "largest": largest},
    }
    text = f"{differing} of {total} elements differ, the largest difference is {largest:.3g}"
    return f"{text}, the first is {place}: {values[0]:.9g} and {values[1]:.9g}", data


#: ``struct`` formats of types; other types are compared by bytes.
_FORMATS = {
    **{"float32": "<f", "float64": "<d", "float16": "<e", "int64": "<q", "int32": "<i", "int16": "<h", "int8": "<b"},
    **{"uint8": "<B", "bool": "<B"},
}


def _numbers(data: bytes, kind: str) -> Iterator[float]:
    if kind == "bfloat16":  # the upper half of a float32
        wide = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
        return (number for (number,) in struct.iter_unpack("<f", wide))
    return (number for (number,) in struct.iter_unpack(_FORMATS.get(kind, "<B"), data))


def _index(number: int, shape: Sequence[int]) -> list[int]:
    indices = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        indices.append(place)
    return indices[::-1]
