"""The matrix: the table of a triage as plain data, ``matrix.json`` in the results directory.

``python -m pytest_aorta.triage.matrix > docs/matrix.schema.json`` publishes its JSON Schema.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pytest_aorta._version import __version__
from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.checks.confounds import THRESHOLD
from pytest_aorta.triage.conclusion import conclusions
from pytest_aorta.triage.facts import OUTCOMES, CellKey, Outcome
from pytest_aorta.triage.matrix.run_state import RunState
from pytest_aorta.triage.table import Table
from pytest_aorta.triage.verdicts import LEVEL, Method, VerdictKind

#: Of matrix.json. The first number changes when readers of an earlier version would misread a file.
SCHEMA_VERSION = "1.0"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


#: Strict JSON has no NaN and no infinity.
Number = Annotated[float | None, BeforeValidator(_finite)]


class _Part(BaseModel):
    """Made from what has the same attributes."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    def text_of_json(self) -> str:
        """Strict JSON on one line. Pydantic's own refuses lone surrogates, which names and messages may hold."""
        return json.dumps(self.model_dump(), allow_nan=False)


class MatrixCellName(_Part):
    """What tells a cell from others; ``digest`` of all else that decides the outcome of a test's trials."""

    workload: str
    cell: str
    test: str = ""
    options: str = ""
    digest: str = ""


class MatrixInterval(_Part):
    """95 %, both ends included."""

    low: Number
    high: Number


class MatrixSignature(_Part):
    """One way to fail; ``text`` is a line for people."""

    text: str
    kind: str
    phase: str
    type: str
    role: str
    where: str
    message: str


class MatrixSignatureCount(_Part):
    """``trials`` are the indices of those that have failed in this way."""

    signature: MatrixSignature
    trials: list[int]


class MatrixSteps(_Part):
    """Times of the steps of all trials together, in ms, without those of the warm-up; ``steps`` is their number."""

    steps: int
    mean_ms: Number
    std_ms: Number
    min_ms: Number
    median_ms: Number
    p90_ms: Number
    p99_ms: Number
    max_ms: Number
    trial_medians_ms: list[Number]


class MatrixVerdict(_Part):
    """``text`` is for people. About ``more_trials`` would decide; the failure rate is below ``rate_below``, 95 %."""

    kind: VerdictKind
    text: str
    reason: str
    more_trials: int | None
    rate_below: Number


class MatrixComparison(_Part):
    """Failure rate minus that of the baseline; ``p_adjusted`` is corrected for the number of cells (Holm)."""

    baseline: MatrixCellName
    difference: Number
    interval: MatrixInterval
    p: Number
    p_adjusted: Number
    method: Method


class MatrixConfound(_Part):
    """``ratio`` of the step times to those of the baseline."""

    kind: str
    text: str
    ratio: Number
    interval: MatrixInterval | None


class MatrixInertVariable(_Part):
    """``text`` is for people."""

    name: str
    reason: str
    text: str


class MatrixEffect(_Part):
    """Whether the variables of the cell's mitigation set can have done anything; ``reason`` is that of ``is_inert``."""

    is_inert: bool
    is_second_baseline: bool
    reason: str
    inert: list[MatrixInertVariable]
    active: list[str]
    same_as: MatrixCellName | None


class MatrixSignatureVerdict(_Part):
    """One way to fail, in the cell and in its baseline."""

    signature: MatrixSignature
    failures: int
    base_failures: int
    verdict: MatrixVerdict
    comparison: MatrixComparison


class MatrixNumbers(MatrixCellName):
    """What the trials of a cell have shown; changes only when one of them ends.

    ``planned`` is ``null`` where no plan says it. ``failure_rate`` is failures / counted, of trials that are ``ok``,
    ``failed`` or ``timeout``; ``error_rate`` the part of all that say nothing about the workload. ``iterations`` are
    those that trials have made. ``resolved_variables`` are what was set for the trials, as their processes have seen
    it: several values where trials differ.
    """

    environment: str
    mitigations: list[str]
    planned: int | None
    seen: int
    counted: int
    failures: int
    failure_rate: Number
    failure_rate_interval: MatrixInterval
    error_rate: Number
    outcome_counts: dict[Outcome, int]
    exit_status_counts: dict[str, int]
    trials: dict[Outcome, list[int]]
    trial_files: list[str]
    signatures: list[MatrixSignatureCount]
    step_times: MatrixSteps | None
    median_wall_sec: Number
    iterations: list[int]
    first_failure_iterations: list[int]
    resolved_variables: dict[str, list[str | None]]
    warnings: dict[str, int]


class MatrixConclusions(_Part):
    """What is concluded from the numbers of a cell and of its baseline."""

    verdict: MatrixVerdict
    comparison: MatrixComparison | None
    confound: MatrixConfound | None
    by_signature: list[MatrixSignatureVerdict]
    effect: MatrixEffect | None


class MatrixCell(MatrixConclusions, MatrixNumbers):
    """One row."""


class MatrixSettings(_Part):
    """What the verdicts were made with."""

    baseline: str | None
    margin: float
    level: float
    speed_threshold: float
    sequential: bool


class MatrixHead(_Part):
    """All but the cells. ``complete`` is false while the run goes on, and where it was ended before its time."""

    schema_version: str = SCHEMA_VERSION
    pytest_aorta: str
    complete: bool
    interrupted: str | None
    plan: str | None
    started_at: str
    written_at: str
    settings: MatrixSettings
    conclusions: list[str]
    warnings: list[str]


class Matrix(MatrixHead):
    """The content of matrix.json."""

    cells: list[MatrixCell] = Field(description="in the order of the plan")


def matrix_of(table: Table, state: RunState) -> Matrix:
    """The matrix of a table."""
    return Matrix.model_validate_json(MatrixText().of(table, state))


class MatrixText:
    """Makes the text of matrix.json again and again: of cells without new trials it keeps the greater part."""

    def __init__(self) -> None:
        self._numbers: dict[CellKey, tuple[CellStatistics, int | None, str]] = {}

    def of(self, table: Table, state: RunState) -> str:
        """Strict JSON, one line per cell."""
        head = _head(table, state).text_of_json()
        cells = [self._numbers_of(row.cell, state.planned.get(row.cell.key)) for row in table.rows]
        rows = [MatrixConclusions.model_validate(row).text_of_json() for row in table.rows]
        lines = ",\n  ".join(f"{cell[:-1]}, {row[1:]}" for cell, row in zip(cells, rows, strict=True))
        return f'{{\n {head[1:-1]},\n "cells": [\n  {lines}\n ]\n}}\n'

    def _numbers_of(self, cell: CellStatistics, planned: int | None) -> str:
        statistics, before, text = self._numbers.get(cell.key, (None, None, ""))
        if statistics is not cell or before != planned:
            text = _numbers(cell, planned).text_of_json()
            self._numbers[cell.key] = (cell, planned, text)
        return text


def _head(table: Table, state: RunState) -> MatrixHead:
    settings = table.settings
    return MatrixHead(
        pytest_aorta=__version__,
        complete=state.complete,
        interrupted=state.interrupted,
        plan=state.plan,
        started_at=state.started_at,
        written_at=state.written_at,
        settings=MatrixSettings(
            baseline=settings.baseline,
            margin=settings.margin,
            level=LEVEL,
            speed_threshold=THRESHOLD,
            sequential=settings.sequential,
        ),
        conclusions=conclusions(table),
        warnings=list(table.warnings),
    )


def _numbers(cell: CellStatistics, planned: int | None) -> MatrixNumbers:
    return MatrixNumbers(
        **vars(cell.key),
        environment=cell.environment,
        mitigations=list(cell.mitigations),
        planned=planned,
        seen=cell.total,
        counted=cell.counted,
        failures=cell.failures,
        failure_rate=cell.rate,
        failure_rate_interval=MatrixInterval.model_validate(cell.rate_interval),
        error_rate=cell.count("infrastructure", "did not run") / cell.total if cell.total else None,
        outcome_counts={outcome: cell.count(outcome) for outcome in OUTCOMES},
        exit_status_counts=cell.exit_statuses,
        trials={outcome: list(cell.trials[outcome]) for outcome in OUTCOMES},
        trial_files=list(cell.files),
        signatures=[MatrixSignatureCount.model_validate(each) for each in cell.signatures],
        step_times=None if cell.steps is None else MatrixSteps.model_validate(cell.steps),
        median_wall_sec=cell.median_wall_sec,
        iterations=list(cell.iterations),
        first_failure_iterations=list(cell.first_failure_iterations),
        resolved_variables={name: [value] for name, value in cell.variables.resolved},
        warnings=cell.warnings,
    )


def schema_text() -> str:
    """The JSON Schema of matrix.json, indented, with sorted keys."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Matrix.model_json_schema(mode="serialization"),
    }
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
