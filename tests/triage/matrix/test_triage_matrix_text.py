"""matrix.md parses back to the cells of the table, whatever their names are; what says nothing is left out."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from support.generated_tables import tables
from support.triage_facts import CRASH, trials

from pytest_aorta.triage.matrix import RunState, markdown
from pytest_aorta.triage.verdicts import Table, triage_of

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
