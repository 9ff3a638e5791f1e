"""Conditions on a table that decide whether a run is a success: ``failure_rate<=0.02``, ``verdict(omp_1)==fixes``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pytest_aorta.settings import RequestError
from pytest_aorta.triage.sequential import rate_upper_bound_sequential
from pytest_aorta.triage.verdicts import Row, Table, VerdictKind, is_named

#: What a gate can look at, in the order of messages.
VALUES = ("failure_rate", "failures", "infrastructure", "step_ms", "speed_ratio", "verdict")

#: Those that have an interval, 95 %.
_WITH_INTERVAL = ("failure_rate", "speed_ratio")

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}

_NUMBER = r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?%?"

_EXAMPLES = "failure_rate<=0.02 or verdict(omp_1)==fixes"

Bound = Literal["upper", "lower"]


@dataclass(frozen=True)
class Gate:
    """One condition.

    Attributes:
        text: as it was given.
        value: one of ``VALUES``.
        bound: which end of the value's interval counts instead of the value itself; ``None`` for neither.
        cell: label or mitigation set of the cells that it is about; ``None`` for all that are compared with another.
        comparison: how the value has to relate to ``operand``.
        operand: a number, or a kind of verdict.
    """

    text: str
    value: str
    bound: Bound | None
    cell: str | None
    comparison: str
    operand: float | str


@dataclass(frozen=True)
class GateResult:
    """What became of a gate; ``problems`` say where and why it does not hold."""

    gate: Gate
    problems: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether it does, for every cell that it is about."""
        return not self.problems


def parse_gate(text: str) -> Gate:
    """A gate from its text: ``VALUE[(CELL)] COMPARISON OPERAND``, the value in ``upper(...)`` or ``lower(...)`` or not.

    Raises:
        ValueError: what was expected, where, and what is there instead.
    """
    reader = _Reader(text)
    values = f"one of {', '.join(VALUES)}"
    word = reader.expect(r"[A-Za-z_]\w*", values)
    bound: Bound | None = None
    if word in ("upper", "lower"):
        bound = "upper" if word == "upper" else "lower"
        reader.expect(r"\(", f"'(' after {word}")
        start = reader.position
        word = reader.expect(r"[A-Za-z_]\w*", f"one of {', '.join(_WITH_INTERVAL)}")
        if word not in _WITH_INTERVAL:
            raise reader.error(f"one of {', '.join(_WITH_INTERVAL)}, which have an interval,", start)
    if word not in VALUES:
        raise reader.error(values, 0)
    cell = None
    if reader.take(r"\("):
        cell = reader.expect(r"[^()<>!]*[^()<>!\s]", "the name of a cell or mitigation set").strip()
        reader.expect(r"\)", "')'")
    if bound:
        reader.expect(r"\)", f"')' that closes {bound}(")
    if word == "verdict":
        comparison, operand = _verdict(reader)
    else:
        comparison = reader.expect("|".join(_COMPARE), f"one of {' '.join(_COMPARE)}")
        number = reader.expect(_NUMBER, "a number")
        operand = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    if not reader.is_at_end:
        raise reader.error("nothing more")
    return Gate(" ".join(text.split()), word, bound, cell, comparison, operand)


def _verdict(reader: _Reader) -> tuple[str, float | str]:
    kinds: tuple[str, ...] = get_args(VerdictKind)
    comparison = reader.expect("==|!=", "== or !=")
    quote = reader.take("['\"]")
    reader.skip_spaces()
    start = reader.position
    operand = " ".join((reader.take(r"[A-Za-z_ ]+") or "").replace("_", " ").split())
    if operand not in kinds:
        raise reader.error(f"one of {', '.join(kinds)}", start)
    if quote:
        reader.expect(quote, f"a closing {quote}")
    return comparison, operand


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def skip_spaces(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    @property
    def is_at_end(self) -> bool:
        self.skip_spaces()
        return self.position == len(self.text)

    def take(self, pattern: str) -> str | None:
        """What matches here, if anything does."""
        self.skip_spaces()
        found = re.compile(pattern).match(self.text, self.position)
        if found is None:
            return None
        self.position = found.end()
        return found.group()

    def expect(self, pattern: str, expected: str) -> str:
        found = self.take(pattern)
        if found is None:
            raise self.error(expected)
        return found

    def error(self, expected: str, position: int | None = None) -> ValueError:
        """``position`` of what is wrong, if that is not the next character."""
        self.skip_spaces()
        start = self.position if position is None else position
        rest = self.text[start:]
        where = f"at character {start + 1}, where {rest!r} is" if rest else "at its end"
        return ValueError(f"{expected} {where}, as in {_EXAMPLES}")


def check_gates(
    gates: Iterable[Gate], cells: Sequence[tuple[str, Sequence[str]]], source: str = "--aorta-gate"
) -> None:
    """Refuse gates on cells that no cell (label, mitigation set) of a plan is; ``source`` is where they were given.

    Raises:
        RequestError: naming the gate, the cell, and the cells that there are.
    """
    for gate in gates:
        if gate.cell is not None and not any(is_named(gate.cell, label, names) for label, names in cells):
            known = ", ".join(dict.fromkeys(label for label, _ in cells))
            raise RequestError(f"{source} {gate.text!r}: there is no cell {gate.cell!r}; there are {known}")


def judge(gates: Iterable[Gate], table: Table) -> list[GateResult]:
    """What becomes of each gate, once all trials are over.

    A gate without a cell is about each cell that is compared with a baseline, and about a cell that has none to be
    compared with; one on ``infrastructure`` about all cells. It does not hold where there is no such cell, nor where a
    cell does not have the value: no trial that counts, no step times.
    """
    return [GateResult(gate, tuple(_problems(gate, table))) for gate in gates]


def _problems(gate: Gate, table: Table) -> Iterable[str]:
    rows = [row for row in table.rows if _is_about(gate, row, table)]
    if not rows:
        yield f"no trial of {gate.cell!r} has run" if gate.cell else "no trial has run"
    for row in rows:
        found, counts = _found(gate, row, table), f"{row.cell.failures} of {row.cell.counted} failed"
        where = f"{row.cell.key.cell} of {row.cell.key.workload}"
        name = f"{gate.bound}({gate.value})" if gate.bound else gate.value
        if found is None:
            yield f"{where} has no {name}: {row.verdict.reason or _why_none(gate, row)}"
        elif not _COMPARE[gate.comparison](found, gate.operand):
            value = row.verdict.text if isinstance(found, str) else f"{found:.4g}"
            yield f"{where} has {name} {value}; {counts}"


def _is_about(gate: Gate, row: Row, table: Table) -> bool:
    if not row.cell.total:
        return False
    if gate.cell is not None:
        return is_named(gate.cell, row.cell.key.cell, row.cell.mitigations)
    if gate.value == "infrastructure" or row.verdict.kind != "baseline":
        return True
    group = [row.cell.key.group() == other.cell.key.group() and other.cell.total > 0 for other in table.rows]
    return sum(group) == 1


def _found(gate: Gate, row: Row, table: Table) -> float | str | None:
    cell, confound = row.cell, row.confound
    if gate.value == "verdict":
        return row.verdict.kind
    if gate.value == "infrastructure":
        return cell.count("infrastructure", "did not run")
    if gate.value == "step_ms":
        return None if cell.steps is None else cell.steps.median_ms
    if gate.value == "speed_ratio":
        interval = None if confound is None else confound.interval
        if confound is None or interval is None or gate.bound is None:
            return None if confound is None else confound.ratio
        return interval.high if gate.bound == "upper" else interval.low
    if not cell.counted or cell.rate is None:
        return None
    if gate.value == "failures":
        return cell.failures
    if gate.bound is None:
        return cell.rate
    if not table.settings.sequential:
        return cell.rate_interval.high if gate.bound == "upper" else cell.rate_interval.low
    if gate.bound == "upper":
        return rate_upper_bound_sequential(cell.failures, cell.counted)
    return 1 - rate_upper_bound_sequential(cell.counted - cell.failures, cell.counted)


def _why_none(gate: Gate, row: Row) -> str:
    if gate.value in ("failure_rate", "failures"):
        return f"none of its {row.cell.total} trials says anything about the workload"
    if gate.value == "speed_ratio" and row.confound is None:
        return "it is compared with no other cell"
    return "no trial has step times" if row.cell.steps is None else "the baseline has no step times"
