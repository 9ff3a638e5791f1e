"""The table as matrix.json, strict JSON of the published schema, and as matrix.md; what a later run reads of it."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import pytest
from hypothesis import given, settings
from support.generated_tables import tables
from support.triage_facts import CRASH, triage_of, trials

from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.matrix import EarlierMatrix, RunState, markdown, matrix_json
from pytest_aorta.triage.verdicts import Table

PUBLISHED = files("pytest_aorta") / "schemas" / "matrix.schema.json"
SCHEMA = jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text()))
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "table.md"


def parsed(table: Table, state: RunState | None = None) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"not strict JSON: {constant}")

    content = json.loads(matrix_json(table, state or RunState()), parse_constant=refuse)
    assert isinstance(content, dict)
    SCHEMA.validate(content)
    return content


def test_the_published_schema_is_that_of_the_code() -> None:
    command = [sys.executable, "-m", "pytest_aorta.triage.matrix"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert PUBLISHED.read_text() == printed, f"publish it again: python {' '.join(command[1:])} > {PUBLISHED}"


@settings(max_examples=15)
@given(tables())
def test_whatever_the_names_are_it_is_strict_json_and_reads_back(table: Table) -> None:
    content = parsed(table)
    assert [(each["workload"], each["cell"], each["test"], each["options"]) for each in content["cells"]] == [
        (row.cell.key.workload, row.cell.key.cell, row.cell.key.test, row.cell.key.options) for row in table.rows
    ]
    for cell, row in zip(content["cells"], table.rows, strict=True):
        assert cell["failure_rate"] == row.cell.rate
        assert sum(cell["outcome_counts"].values()) == cell["seen"] == len(cell["trial_files"]) == row.cell.total
        assert {kind: len(found) for kind, found in cell["trials"].items()} == cell["outcome_counts"]
        assert sum(len(each["trials"]) for each in cell["signatures"]) == cell["failures"]
        assert (cell["verdict"]["kind"], cell["comparison"] is None) == (row.verdict.kind, row.comparison is None)


def test_it_says_what_a_cell_has_shown_and_what_follows() -> None:
    bugs = trials("none", "FFFFCCF.......TE-", step_ms=(20.0, 22.0), signatures={"C": CRASH})
    state = RunState(plan="f00", planned={CellKey("gemm", "local-none"): 20}, complete=False)
    content = parsed(triage_of([*bugs, *trials("omp_1", "." * 20, step_ms=(40.0, 41.0))]), state)
    assert (content["schema_version"], content["complete"], content["plan"]) == ("1.0", False, "f00")
    base, fixed = content["cells"]
    assert (base["planned"], base["seen"], base["counted"], base["failures"]) == (20, 17, 15, 8)
    counts = {"ok": 7, "failed": 7, "timeout": 1, "infrastructure": 1, "interrupted": 0, "in doubt": 0}
    counts["did not run"] = 1
    assert base["outcome_counts"] == counts
    assert base["step_times"]["median_ms"] == 20.0
    crash = next(each for each in base["signatures"] if each["signature"]["type"] == "SIGSEGV")
    assert crash["trials"] == [4, 5]
    assert base["trial_files"][4] == "gemm/local-none/trial_4.json"
    assert fixed["verdict"]["kind"] == "fixes"
    assert fixed["comparison"]["baseline"]["cell"] == "local-none"
    assert fixed["comparison"]["method"] == "fixed"
    assert fixed["speed"]["kind"] == "slower"
    page = PAGE.read_text()
    assert [key for key in {*content, *base} if f"`{key}`" not in page] == []
    assert content["conclusions"][0].startswith("omp_1 fixes it: 0 of 20 failed, 8 of 15 without it")


markdown_it: Any = pytest.importorskip("markdown_it")


def rendered(text: str) -> str:
    html_text: str = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    return html_text


def fields(text: str) -> list[dict[str, str]]:
    """The rows of the first table, by column."""
    table = rendered(text).partition("<table>")[2].partition("</table>")[0]
    lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in table.split("<tr>")[1:]]
    titles, *rows = [[html.unescape(field) for field in line] for line in lines]
    return [dict(zip(titles, row, strict=True)) for row in rows]


def shown(name: str) -> str:
    """As a field shows a name: on one line, of bounded length."""
    text = " ".join("".join(char if char.isprintable() else " " for char in name).split())
    return text if len(text) <= 160 else text[:157] + "..."


@settings(max_examples=25)
@given(tables())
def test_it_parses_back_to_the_same_cells(table: Table) -> None:
    text = markdown(table, RunState())
    assert text.isprintable() or set(text) - {"\n"} == {char for char in text if char.isprintable()}
    if table.rows:
        assert [(row["Workload"], row["Cell"], row["Environment"], row["Mitigations"]) for row in fields(text)] == [
            (cell.key.workload, shown(cell.key.cell), shown(cell.environment), shown(cell.mitigations[0]))
            for cell in (row.cell for row in table.rows)
        ]
    # Nothing in a name is markup: all tags are those of the page itself.
    page = {"h2", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
    assert set(re.findall(r"</?(\w+)", rendered(text))) <= page


def test_columns_and_legend_are_only_for_what_appears() -> None:
    plain = markdown(triage_of(trials("none", "...")), RunState())
    assert list(fields(plain)[0]) == [
        "Workload",
        "Cell",
        "Mitigations",
        "Environment",
        "Failed",
        "Rate (95%)",
    ]
    assert "**baseline**" not in plain
    cells = [
        *trials("none", "FFFFCCF.......TE-", step_ms=(20.0, 22.0), signatures={"C": CRASH}),
        *trials("omp_1", "." * 20, step_ms=(40.0, 41.0)),
    ]
    base, fixed = fields(full := markdown(triage_of(cells), RunState()))
    assert (base["Failed"], base["Timeouts"], base["Infrastructure"], base["Did not run"]) == (
        "8 of 15",
        "1",
        "1",
        "1",
    )
    assert base["Top failure"] == "5x loss is nan (and 3 others)"
    assert (base["Verdict"], fixed["Verdict"]) == ("baseline", "fixes")
    assert fixed["Rate (95%)"] == "0% (<14%)"
    assert fixed["Speed"].startswith("slower: +9")
    assert float(fixed["p"]) < 0.05
    assert "**fixes**" in full
    assert "**worse**" not in full


def test_of_a_cell_that_counts_no_iterations_there_is_no_number_beside_one_that_does() -> None:
    counts = [replace(facts, iterations=50) for facts in trials("omp_1", "...")]
    rows = fields(markdown(triage_of([*trials("none", "..."), *counts]), RunState()))
    assert [row["Iters"] for row in rows] == ["-", "50"]


def test_it_says_whether_the_run_goes_on() -> None:
    table = triage_of(trials("none", "FF..."))
    planned = {table.rows[0].cell.key: 20}
    assert "5 of 20 trials in 1 cell; plan f00; the run goes on." in markdown(
        table, RunState(plan="f00", planned=planned, complete=False)
    )
    assert "ended early: SIGTERM" in markdown(table, RunState(complete=False, interrupted="SIGTERM"))
    assert "the run goes on" not in markdown(table, RunState())


NONE = CellKey("gemm", "local-none")


def leave(results: Path, *, planned: int, sequential: bool = False, complete: bool = True) -> None:
    table = triage_of(trials("none", "F.F."), TriageSettings(sequential=sequential))
    state = RunState(planned={NONE: planned}, complete=complete)
    (results / "matrix.json").write_text(matrix_json(table, state))


def test_a_run_that_goes_on_with_another_number_of_trials_than_planned_was_looked_at(tmp_path: Path) -> None:
    leave(tmp_path, planned=4)
    assert [EarlierMatrix(tmp_path).was_looked_at({NONE: planned}) for planned in (2, 4, 8)] == [True, False, True]
    leave(tmp_path, planned=20, complete=False)
    assert not EarlierMatrix(tmp_path).was_looked_at({NONE: 20})
    leave(tmp_path, planned=8, sequential=True)  # and stays so
    assert EarlierMatrix(tmp_path).was_looked_at({NONE: 8})


@pytest.mark.parametrize(("sequential", "complete"), [(False, True), (True, True), (False, False)])
def test_a_later_reader_judges_as_the_run_did(tmp_path: Path, sequential: bool, complete: bool) -> None:
    leave(tmp_path, planned=8, sequential=sequential, complete=complete)
    assert EarlierMatrix(tmp_path).settings == TriageSettings(sequential=sequential or not complete)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"cells": 3}', '{"cells": [3, {"seen": 1}]}', "\udc80"])
def test_what_is_no_matrix_says_nothing(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "matrix.json").write_bytes(content.encode(errors="surrogateescape"))
    assert not EarlierMatrix(tmp_path).was_looked_at({NONE: 8})
    assert EarlierMatrix(tmp_path).settings is None
