"""The matrix for people: ``matrix.md``, in GitHub's Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_aorta.triage.conclusion import conclusions, has_verdict
from pytest_aorta.triage.matrix.run_state import RunState
from pytest_aorta.triage.table import Row, Table
from pytest_aorta.triage.wording import counted, difference_with_interval, p_value, rate_with_interval, step_ms

#: Longest text of a message in a field of the table.
_LONGEST = 160

#: Warnings that are listed.
_WARNINGS = 20

#: Characters that Markdown may take for something else than themselves.
_MARKS = re.compile(r"[\\`*\[\]#|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")

#: The same where a line begins.
_FIRST = re.compile(r"^([-+=]|\d+(?=[.)]))")

_LEGEND: Mapping[str, str] = {
    "baseline": "the cell that others are compared with",
    "second baseline": "its variables are what they are without it: not a mitigation, but more trials of the baseline",
    "fixes": "fails less often than the baseline, and no failure was seen",
    "reduces": "fails less often than the baseline, but still does",
    "worse": "fails more often than the baseline",
    "no effect": "the failure rate differs from the baseline's by less than the margin",
    "undecided": "too few trials to tell",
    "did not run": "no trial has come to its main work",
    "error": "no trial says anything about the workload",
}


@dataclass(frozen=True)
class _Column:
    """``always``: also where no row has a text for it, or only ``-``."""

    title: str
    text: Callable[[Row], str]
    always: bool = False
    right: bool = False


def markdown(table: Table, state: RunState) -> str:
    """The table of cells with its conclusions; columns and legend only for what appears."""
    rows = table.rows
    parts = [_title(table), *(f"**{text_of(sentence)}**" for sentence in conclusions(table)), _run(table, state)]
    columns = [column for column in _columns(state) if column.always or {column.text(row) for row in rows} - {"", "-"}]
    if not any(map(has_verdict, rows)):
        columns = [column for column in columns if column.title != "Verdict"]
    parts.append(_table(columns, rows))
    if ways := [(row, way) for row in rows for way in row.by_signature]:
        titles = ("Cell", "Failure", "Failures", "Of the baseline", "p", "Verdict")
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
        parts += ["Verdicts on each way to fail:", _lines(titles, ("---",) * len(titles), lines)]
    if idle := list(dict.fromkeys(text for row in rows if row.effect for text in row.effect.sentences)):
        parts += ["Variables that may have done nothing:", _items(idle)]
    if legend := list(_legend(rows)):
        parts.append("\n".join(f"- {line}" for line in legend))
    if warnings := _warnings(table):
        parts += ["Warnings:", _items(warnings)]
    return "\n\n".join(parts) + "\n"


def text_of(text: str, longest: int | None = None) -> str:
    """A text that Markdown, and HTML within it, shows as it is, on one line."""
    clean = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if longest is not None and len(clean) > longest:
        clean = clean[: longest - 3] + "..."
    return _MARKS.sub(lambda found: f"\\{found[0]}", html.escape(clean, quote=False))


def _items(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_FIRST.sub(_harmless, text_of(text))}" for text in texts)


def _harmless(found: re.Match[str]) -> str:
    return f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}"


def _title(table: Table) -> str:
    workloads = dict.fromkeys(row.cell.key.workload for row in table.rows)
    return f"## Trials of {text_of(', '.join(workloads), _LONGEST)}"


def _run(table: Table, state: RunState) -> str:
    seen, planned = sum(row.cell.total for row in table.rows), sum(state.planned.values())
    number = f"{seen} of {counted(planned, 'trial')}" if planned > seen else counted(seen, "trial")
    texts = [f"{number} in {counted(len(table.rows), 'cell')}"]
    if state.plan:
        texts.append(f"plan {state.plan}")
    if state.interrupted:
        texts.append(f"ended early: {state.interrupted}")
    elif not state.complete:
        texts.append("the run goes on")
    return f"{text_of('; '.join(texts))}. {text_of(state.written_at)}".rstrip()


def _columns(state: RunState) -> list[_Column]:
    def seen(row: Row) -> str:
        planned = state.planned.get(row.cell.key)
        return f"{row.cell.total} of {planned}" if planned is not None and planned != row.cell.total else ""

    return [
        _Column("Workload", lambda row: row.cell.key.workload, always=True),
        _Column("Test", lambda row: row.cell.key.test),
        _Column("Cell", lambda row: row.cell.key.cell, always=True),
        _Column("Mitigations", lambda row: ", ".join(row.cell.mitigations), always=True),
        _Column("Environment", lambda row: row.cell.environment, always=True),
        _Column("Config", lambda row: row.cell.key.options),
        _Column("Seen", seen, right=True),
        _Column(
            "Failure rate (95%)",
            lambda row: rate_with_interval(row.cell.rate, row.cell.rate_interval),
            always=True,
            right=True,
        ),
        _Column("Failures", lambda row: f"{row.cell.failures} of {row.cell.counted}", always=True, right=True),
        _Column("Timeouts", lambda row: _number(row.cell.count("timeout")), right=True),
        _Column("Infrastructure", lambda row: _number(row.cell.count("infrastructure")), right=True),
        _Column("Did not run", lambda row: _number(row.cell.count("did not run")), right=True),
        _Column("Difference (points)", _difference, right=True),
        _Column("p", lambda row: p_value(row.comparison.p_adjusted) if row.comparison else "", right=True),
        _Column("Verdict", _verdict),
        _Column("Inert?", lambda row: f"inert? ({row.effect.reason})" if row.effect and row.effect.is_inert else ""),
        _Column("Confound", lambda row: row.confound.text if row.confound else ""),
        _Column("Top failure", _top_failure),
        _Column("Top warning", _top_warning),
        _Column("First failure", lambda row: _range(row.cell.first_failure_iterations), right=True),
        _Column("Iters", lambda row: _range(row.cell.iterations) or "-", right=True),
        _Column(
            "Median step (ms)",
            lambda row: step_ms(row.cell.steps.median_ms if row.cell.steps else None),
            always=True,
            right=True,
        ),
    ]


def _table(columns: Sequence[_Column], rows: Iterable[Row]) -> str:
    rules = ["---:" if column.right else "---" for column in columns]
    return _lines(
        [column.title for column in columns], rules, [[column.text(row) for column in columns] for row in rows]
    )


def _lines(titles: Iterable[str], rules: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [titles, *rows]
    texts = [f"| {' | '.join(text_of(text, _LONGEST) for text in line)} |" for line in lines]
    return "\n".join([texts[0], f"| {' | '.join(rules)} |", *texts[1:]])


def _number(count: int) -> str:
    return str(count) if count else ""


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]}-{numbers[-1]}"


def _difference(row: Row) -> str:
    found = row.comparison
    return difference_with_interval(found.difference, found.interval) if found else ""


def _verdict(row: Row) -> str:
    verdict = row.verdict
    if verdict.kind == "undecided" and not has_verdict(row):
        return ""
    return f"{verdict.text}: {verdict.reason}" if verdict.reason else verdict.text


def _top_failure(row: Row) -> str:
    if not row.cell.signatures:
        return ""
    first, *others = row.cell.signatures
    more = sum(len(each.trials) for each in others)
    return f"{len(first.trials)}x {first.signature.text}" + (f" (and {more} others)" if more else "")


def _top_warning(row: Row) -> str:
    if not row.cell.warnings:
        return ""
    text, number = max(row.cell.warnings.items(), key=lambda item: item[1])
    return f"{number}x {text}"


def _legend(rows: Sequence[Row]) -> Iterable[str]:
    shown = {row.verdict.kind for row in rows if _verdict(row)} if any(map(has_verdict, rows)) else set()
    for kind, meaning in _LEGEND.items():
        if kind in shown:
            yield f"**{kind}**: {meaning}"
    if any(row.cell.count("infrastructure", "did not run") for row in rows):
        yield "**Infrastructure**, **Did not run**: say nothing about the workload, and do not count"
    if any(row.confound and row.confound.kind == "speed" for row in rows):
        yield "**speed**: its steps are slower than the baseline's, which alone can hide a fault of timing"
    if any(row.comparison and row.comparison.method == "sequential" for row in rows):
        yield "p and intervals hold whenever one looks, so that trials may be added or left out"


def _warnings(table: Table) -> list[str]:
    found = [
        *table.warnings,
        *(
            f"{row.cell.key.workload} {row.cell.key.cell}: {text} ({counted(number, 'trial')})"
            for row in table.rows
            for text, number in row.cell.warnings.items()
        ),
    ]
    more = len(found) - _WARNINGS
    return [*found[:_WARNINGS], f"{counted(more, 'more warning')} in the trial files"] if more > 0 else found
