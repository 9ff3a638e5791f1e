"""Conditions on a table that decide whether a run is a success: ``failure_rate<=0.02``, ``verdict(omp_1)==fixes``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pytest_aorta.triage.judging import VerdictKind
from pytest_aorta.triage.rates import Interval
from pytest_aorta.triage.verdicts import Row, Table, check_baseline, is_named

#: Values that gates can test, in the order of messages.
VALUES: Mapping[str, Callable[[Row], float | str | None]] = {
    "failure_rate": lambda row: row.cell.rate,
    "failures": lambda row: row.cell.failures if row.cell.counted else None,
    "infrastructure": lambda row: row.cell.lost,
    "step_ms": lambda row: None if row.cell.steps is None else row.cell.steps.median_ms,
    "speed_ratio": lambda row: None if row.speed is None else row.speed.ratio,
    "verdict": lambda row: row.verdict.kind,
}

#: Values with a 95 % interval.
_WITH_INTERVAL = ("failure_rate", "speed_ratio")

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}

#: ``VALUE`` or ``VALUE(CELL)``, perhaps in ``upper(...)`` or ``lower(...)``; a comparison; an operand.
_GATE = re.compile(
    r"(?:(?P<bound>upper|lower)\s*\(\s*)?(?P<value>[A-Za-z_]\w*)\s*(?:\(\s*(?P<cell>[^()<>!]*[^()<>!\s])\s*\)\s*)?"
    rf"(?(bound)\)\s*)(?P<comparison>{'|'.join(_COMPARE)})\s*(?P<operand>.+)"
)

_NUMBER = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)(%?)")


@dataclass(frozen=True)
class Gate:
    """One condition: one of ``VALUES`` compared with ``operand``, a number or a kind of verdict.

    ``bound``: ``upper`` or ``lower`` to test that end of the value's interval. ``cell``: label or mitigation set of the
    tested cells; ``None`` for all cells that are compared with another.
    """

    text: str
    value: str
    bound: str | None
    cell: str | None
    comparison: str
    operand: float | str


def parse_gate(text: str) -> Gate:
    """Parse ``VALUE[(CELL)] COMPARISON OPERAND``; the value may be in ``upper(...)`` or ``lower(...)``.

    Raises:
        ValueError: with the expected and the given text.
    """
    match = _GATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"VALUE, VALUE(CELL) or upper(VALUE), one of {' '.join(_COMPARE)}, and a number or verdict, as in "
            "failure_rate<=0.02 or verdict(omp_1)==fixes"
        )
    bound, value, cell, comparison, given = match.groups()
    if bound is None and (ending := re.fullmatch(r"(\w+)_(upper|lower)", value)):  # failure_rate_upper
        value, bound = ending.groups()
    if value not in VALUES:
        raise ValueError(f"one of {', '.join(VALUES)}, not {value!r}")
    if bound and value not in _WITH_INTERVAL:
        raise ValueError(f"one of {', '.join(_WITH_INTERVAL)} in {bound}(), which have an interval, not {value!r}")
    operand: float | str
    if value == "verdict":
        kinds: tuple[str, ...] = get_args(VerdictKind)
        if comparison not in ("==", "!="):
            raise ValueError(f"== or != after verdict, not {comparison!r}")
        operand = " ".join(re.sub(r"^(['\"])(.*)\1$", r"\2", given).replace("_", " ").split())
        if operand not in kinds:
            raise ValueError(f"one of {', '.join(kinds)} after verdict{comparison}, not {given!r}")
    else:
        number = _NUMBER.fullmatch(given)
        if number is None:
            raise ValueError(f"a number such as 0.02 or 2% after {comparison}, not {given!r}")
        operand = float(number[1]) / 100 if number[2] else float(number[1])
    return Gate(" ".join(text.split()), value, bound, cell, comparison, operand)


def check_gates(
    gates: Iterable[Gate], cells: Sequence[tuple[str, Sequence[str]]], source: str = "--aorta-gate"
) -> None:
    """Refuse gates on cells (label, mitigation set) that the plan does not have; ``source``: where they were given.

    Raises:
        RequestError: with the gate, the cell, and all cells of the plan.
    """
    for gate in gates:
        if gate.cell is not None:
            check_baseline(gate.cell, cells, f"{source} {gate.text!r}")


def explain_gate(gate: Gate, table: Table) -> Iterator[str]:
    """Why a gate does not hold after all trials, one text per cell; none if it holds.

    A gate without a cell applies to each cell that is compared with a baseline, and to a cell that has nothing to be
    compared with; a gate on ``infrastructure`` applies to all cells. It fails if no cell applies, and for a cell
    without
    the value: without counted trials, or without step times.
    """
    rows = [row for row in table.rows if row.cell.total]
    if gate.cell is not None:
        about = [row for row in rows if is_named(gate.cell, row.cell.key.cell, row.cell.mitigations)]
    else:
        groups = [row.cell.key.group() for row in rows]
        about = [
            row
            for row in rows
            if gate.value == "infrastructure"
            or row.verdict.kind != "baseline"
            or groups.count(row.cell.key.group()) == 1
        ]
    if not about:
        yield f"no trial of {gate.cell!r} has run" if gate.cell else "no trial has run"
    for row in about:
        value = VALUES[gate.value](row)
        if value is not None and gate.bound:
            value = _end(gate, row, table.settings.sequential)
        counts = f"{row.cell.failures} of {row.cell.counted} failed"
        where = f"{row.cell.key.cell} of {row.cell.key.workload}"
        name = f"{gate.bound}({gate.value})" if gate.bound else gate.value
        if value is None:
            why = "no trial has step times" if row.cell.steps is None else "the baseline has no step times"
            if gate.value in ("failure_rate", "failures"):
                why = f"none of its {row.cell.total} trials says anything about the workload"
            elif gate.value == "speed_ratio" and row.speed is None:
                why = "it is compared with no other cell"
            yield f"{where} has no {name}: {row.verdict.reason or why}"
        elif not _COMPARE[gate.comparison](value, gate.operand):
            text = row.verdict.text if isinstance(value, str) else f"{value:.4g}"
            yield f"{where} has {name} {text}; {counts}"


def _end(gate: Gate, row: Row, sequential: bool) -> float:
    interval = row.cell.rate_interval
    if gate.value == "speed_ratio":
        interval = (row.speed and row.speed.interval) or Interval(0.0, math.inf)
    elif sequential:
        from pytest_aorta.triage.sequential import rate_upper_bound_sequential

        failures, trials = row.cell.failures, row.cell.counted
        if gate.bound == "upper":
            return rate_upper_bound_sequential(failures, trials)
        return 1 - rate_upper_bound_sequential(trials - failures, trials)
    return interval.high if gate.bound == "upper" else interval.low
