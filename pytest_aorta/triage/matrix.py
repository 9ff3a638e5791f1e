"""The table of a triage in the results directory: ``matrix.json`` for programs, ``matrix.md`` for people."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pytest_aorta._version import __version__
from pytest_aorta.common.texts import counted, utc_now
from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage import margin as read_margin
from pytest_aorta.triage.cells import MitigationEffect, SignatureCount
from pytest_aorta.triage.columns import COLUMNS, MEANINGS, conclusions, json_data, p_value
from pytest_aorta.triage.facts import CellKey, Outcome, StepSummary
from pytest_aorta.triage.judging import LEVEL, Comparison, Verdict
from pytest_aorta.triage.rates import Interval
from pytest_aorta.triage.reading import MATRIX_JSON, Results, recorded_rules, triage_in_order
from pytest_aorta.triage.speed import OperatorChange, Speed
from pytest_aorta.triage.verdicts import Row, SignatureVerdict, Table
from pytest_aorta.workspace.atomic import write_text

MATRIX_MD = "matrix.md"

#: Version of matrix.json. The first number changes when readers of an earlier version would misread a file.
SCHEMA_VERSION = "1.0"

#: Longest text in a field of the Markdown table.
_LONGEST = 160

#: Warnings in a list, at most.
_WARNINGS = 20

#: Characters that may have a meaning in Markdown.
_MARKS = re.compile(r"[\\`*\[\]#|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")

#: The same at the beginning of a line.
_FIRST = re.compile(r"^([-+=]|\d+(?=[.)]))")


@dataclass(frozen=True)
class RunState:
    """The state of the run, for its matrix.

    ``plan``: digest of the plan; ``None`` if tests have started the trials. ``planned``: trials of each cell of the
    plan. ``complete``: the run has reached its end. ``interrupted``: why it ended earlier.
    """

    plan: str | None = None
    planned: Mapping[CellKey, int] = field(default_factory=dict)
    started_at: str = ""
    written_at: str = ""
    complete: bool = True
    interrupted: str | None = None


def matrix_json(table: Table, state: RunState) -> str:
    """Strict JSON, one line per cell; ``docs/guides/table.md`` has the keys."""
    settings = table.settings
    head = {
        "schema_version": SCHEMA_VERSION,
        "pytest_aorta": __version__,
        "complete": state.complete,
        "interrupted": state.interrupted,
        "plan": state.plan,
        "started_at": state.started_at,
        "written_at": state.written_at,
        "settings": {**vars(settings), "margin": str(settings.margin), "level": LEVEL},
        "conclusions": conclusions(table),
        "warnings": table.warnings,
        "associations": table.associations.tests,
        **({"divergence": table.divergence} if table.divergence else {}),
        **({"replays": table.replays} if table.replays else {}),
        **({"nodes": table.nodes} if table.nodes else {}),
        **({"factorials": table.factorials} if table.factorials else {}),
    }
    cells = [{column.key: column.value(row) for column in COLUMNS if column.key} for row in _planned_rows(table, state)]
    lines = ",\n  ".join(json.dumps(json_data(cell), allow_nan=False) for cell in cells)
    return f'{{\n {json.dumps(json_data(head), allow_nan=False)[1:-1]},\n "cells": [\n  {lines}\n ]\n}}\n'


#: Types of the keys of a cell, for the schema.
_OF_CELLS: Mapping[str, Any] = {
    **dict.fromkeys(("workload", "test", "cell", "environment", "options", "digest"), str),
    **dict.fromkeys(("mitigations", "trial_files"), list[str]),
    **dict.fromkeys(("first_failure_iterations", "iterations"), list[int]),
    **dict.fromkeys(("seen", "failures", "counted"), int),
    **dict.fromkeys(("planned", "starts"), int | None),
    **dict.fromkeys(("failure_rate", "rate_below", "start_rate_below", "error_rate", "median_wall_sec"), float | None),
    **dict.fromkeys(("exit_status_counts", "detected", "collected", "not_collected", "warnings"), dict[str, int]),
    **dict.fromkeys(("signatures", "losses"), list[SignatureCount]),
    "failure_rate_interval": Interval,
    "outcome_counts": dict[Outcome, int],
    "trials": dict[Outcome, list[int]],
    "verdict": Verdict,
    "comparison": Comparison | None,
    "by_signature": list[SignatureVerdict],
    "effect": MitigationEffect | None,
    "speed": Speed | None,
    "operators": list[OperatorChange],
    "step_times": StepSummary | None,
    "resolved_variables": dict[str, list[str | None]],
}


def schema_text() -> str:
    """The JSON Schema of matrix.json, as indented JSON with sorted keys; a number that is not finite is ``null``.

    ``python -m pytest_aorta.triage.matrix > pytest_aorta/schemas/matrix.schema.json`` publishes it.
    """
    from pydantic import create_model

    given: dict[str, Any] = {column.key: (_OF_CELLS[column.key], ...) for column in COLUMNS if column.key}
    cell: Any = create_model("Cell", **given)
    head: dict[str, Any] = dict.fromkeys(("schema_version", "pytest_aorta", "started_at", "written_at"), (str, ...))
    head |= dict.fromkeys(("interrupted", "plan"), (str | None, ...)) | {"complete": (bool, ...)}
    head |= dict.fromkeys(("conclusions", "warnings"), (list[str], ...)) | {"settings": (dict[str, Any], ...)}
    head |= {"associations": (list[Any], ...), "cells": (list[cell], ...)}
    head |= dict.fromkeys(("divergence", "replays", "nodes", "factorials"), (list[Any], []))
    schema = create_model("Matrix", **head).model_json_schema()

    def with_null(part: Any) -> Any:
        if isinstance(part, dict):
            kind = {"type": ["number", "null"]} if part.get("type") == "number" else {}
            return {name: with_null(each) for name, each in part.items()} | kind
        return [with_null(each) for each in part] if isinstance(part, list) else part

    published = {"$schema": "https://json-schema.org/draft/2020-12/schema", **with_null(schema)}
    return json.dumps(published, indent=2, sort_keys=True) + "\n"


def _planned_rows(table: Table, state: RunState) -> list[Row]:
    return [replace(row, planned=state.planned.get(row.cell.key)) for row in table.rows]


def markdown(table: Table, state: RunState) -> str:
    """The table in GitHub's Markdown with its conclusions; columns and legend only for what appears."""
    rows = _planned_rows(table, state)
    has_verdicts = any(row.has_verdict for row in rows)
    columns = [
        column
        for column in COLUMNS
        if "markdown" in column.formats and column.says_something(rows) and (has_verdicts or column.key != "verdict")
    ]
    rules = ["---" if column.left else "---:" for column in columns]
    workloads = ", ".join(dict.fromkeys(row.cell.key.workload for row in rows))
    seen, planned = sum(row.cell.total for row in rows), sum(state.planned.values())
    number = f"{seen} of {counted(planned, 'trial')}" if planned > seen else counted(seen, "trial")
    run = [f"{number} in {counted(len(rows), 'cell')}"]
    run += [f"plan {state.plan}"] if state.plan else []
    if state.interrupted:
        run.append(f"ended early: {state.interrupted}")
    elif not state.complete:
        run.append("the run goes on")
    parts = [
        f"## Trials of {escape_markdown(workloads, _LONGEST)}",
        *(f"**{escape_markdown(sentence)}**" for sentence in conclusions(table)),
        f"{escape_markdown('; '.join(run))}. {escape_markdown(state.written_at)}".rstrip(),
        pipe_table((each.title for each in columns), rules, [[each.text_of(row) for each in columns] for row in rows]),
    ]
    if ways := [(row, way) for row in rows for way in row.by_signature]:
        lines = [
            (
                row.cell.key.cell,
                way.signature.text,
                f"{way.failures} of {row.cell.counted}",
                str(way.base_failures),
                p_value(way.comparison.p_adjusted),
                way.verdict.text,
            )
            for row, way in ways
        ]
        titles = ("Cell", "Failure", "Failed", "Of the baseline", "p", "Verdict")
        parts += ["Verdicts on each way to fail:", pipe_table(titles, ("---",) * len(titles), lines)]
    if idle := list(dict.fromkeys(text for row in rows if row.effect for text in row.effect.sentences)):
        parts += ["Variables that may have done nothing:", _items(idle)]
    if legend := list(_legend(rows, has_verdicts)):
        parts.append("\n".join(f"- {line}" for line in legend))
    warnings = [*table.warnings]
    for row in table.rows:
        for text, times in row.cell.tally("warnings").items():
            warnings.append(f"{row.cell.key.workload} {row.cell.key.cell}: {text} ({counted(times, 'trial')})")
    if (more := len(warnings) - _WARNINGS) > 0:
        warnings[_WARNINGS:] = [f"{counted(more, 'more warning')} in the trial files"]
    if warnings:
        parts += ["Warnings:", _items(warnings)]
    return "\n\n".join(parts) + "\n"


def escape_markdown(text: str, longest: int | None = None) -> str:
    """Escape a text so that Markdown shows it unchanged, on one line."""
    clean = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    clean = clean if longest is None or len(clean) <= longest else f"{clean[: longest - 3]}..."
    return _MARKS.sub(lambda mark: f"\\{mark[0]}", html.escape(clean, quote=False))


def _items(texts: Iterable[str]) -> str:
    def harmless(mark: re.Match[str]) -> str:
        return f"{mark[0]}\\" if mark[0].isdigit() else f"\\{mark[0]}"

    return "\n".join(f"- {_FIRST.sub(harmless, escape_markdown(text))}" for text in texts)


def pipe_table(titles: Iterable[str], rules: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    texts = [f"| {' | '.join(escape_markdown(text, _LONGEST) for text in line)} |" for line in (titles, *rows)]
    return "\n".join([texts[0], f"| {' | '.join(rules)} |", *texts[1:]])


def _legend(rows: Sequence[Row], has_verdicts: bool) -> Iterator[str]:
    kinds = {row.verdict.kind for row in rows if row.has_verdict or row.verdict.kind == "baseline"}
    for kind, meaning in MEANINGS.items():
        if has_verdicts and kind in kinds:
            yield f"**{kind}**: {meaning}"
    if any(row.cell.lost for row in rows):
        yield "**Infrastructure**, **Interrupted**, **Did not run**: say nothing about the workload, and do not count"
    if any(row.is_slower and row.verdict.kind != "slower" for row in rows):
        yield "**slower**: its steps take longer than the baseline's, which alone can hide a fault of timing"
    if any(row.comparison and row.comparison.method == "sequential" for row in rows):
        yield "p values and intervals stay valid if trials are added, or if you stop early"


class EarlierMatrix:
    """Content of an earlier run's matrix.json; empty if the file is missing, damaged, or foreign.

    ``complete``: the run has reached its end, if only as no more trials were needed. ``zooms``: sentences about
    operators that differ, by workload, cell, and the cell that it was compared with.
    """

    def __init__(self, results: Path) -> None:
        self.seen: dict[CellKey, int] = {}
        self.planned: dict[CellKey, int] = {}
        self.settings: TriageSettings | None = None
        self.complete = True
        self.zooms: dict[tuple[str, str, str | None], str] = {}
        self._was_sequential = False
        try:
            content = json.loads((results / MATRIX_JSON).read_text(encoding="utf-8"))
            settings = {each.name: content["settings"][each.name] for each in fields(TriageSettings)}
            numbers = [
                (CellKey(*(cell[each.name] for each in fields(CellKey))), cell["seen"], cell["planned"])
                for cell in content["cells"]
            ]
            for each in content.get("divergence", ()):
                if "zoom" in each:
                    self.zooms[each["workload"], each["cell"], each["compared_with"]] = each["zoom"]["sentence"]
            # If a run ended early, the number of trials may depend on their results.
            settings |= {
                "margin": read_margin(settings["margin"]),
                "signatures": recorded_rules(content),
                "sequential": settings["sequential"] or not content["complete"],
            }
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return
        self._was_sequential = content["settings"]["sequential"]
        self.complete = bool(content["complete"])
        self.settings = TriageSettings(**settings)
        self.seen = {key: seen for key, seen, _ in numbers}
        self.planned = {key: planned for key, _, planned in numbers if planned is not None}

    def was_looked_at(self, planned: Mapping[CellKey, int]) -> bool:
        """Whether the ``planned`` number of trials of a resumed run may depend on the results of this one.

        It may if a cell has had trials by a plan of another size, or if that was so for this run already. Then
        statistics for a number of trials that was set before are invalid. A run of the same size that ended early is no
        such case: resuming it completes the plan.
        """
        common = [key for key, seen in self.seen.items() if seen and key in planned]
        return any(self._was_sequential or self.planned.get(key) != planned[key] for key in common)


def write_merged_matrix(results: Path, parts: Sequence[Path]) -> None:
    """Write ``matrix.json`` and ``matrix.md`` for all trials in a results directory.

    ``parts``: the merged results directories; the first with settings gives the settings.

    Raises:
        OSError: the files cannot be written.
    """
    earlier = [EarlierMatrix(path) for path in (results, *parts)]
    settings = next((each.settings for each in earlier if each.settings is not None), TriageSettings())
    facts = [trial.facts for trial in Results(results, settings.signatures)]
    if not facts:  # replays only
        return
    triage = triage_in_order(facts, settings)
    seen = {cell.key: cell.statistics.total for cell in triage.cells}
    planned = dict(seen)
    for each in earlier:
        for key, count in each.planned.items():
            planned[key] = max(count, planned.get(key, 0))
    began = min(each.started_at for each in facts)
    complete = all(seen.get(key, 0) >= count for key, count in planned.items())
    missing = None if complete else "parts of the plan are not merged"
    state = RunState(None, planned, began, utc_now(), complete, missing)
    table = triage.table()
    write_text(results / MATRIX_JSON, matrix_json(table, state))
    write_text(results / MATRIX_MD, markdown(table, state))


if __name__ == "__main__":
    print(schema_text(), end="")
