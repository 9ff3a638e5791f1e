"""matrix.json holds the table, is strict JSON of the published schema, and costs little to make again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from hypothesis import given, settings
from support.generated_tables import tables
from support.triage_facts import CRASH, trials

from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.matrix import RunState, matrix_json
from pytest_aorta.triage.verdicts import Table, triage_of

PAGE = Path(__file__).parents[3] / "docs" / "table.md"


def parsed(table: Table, state: RunState | None = None) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"not strict JSON: {constant}")

    content = json.loads(matrix_json(table, state or RunState()), parse_constant=refuse)
    assert isinstance(content, dict)
    return content


@settings(max_examples=15)
@given(tables())
def test_whatever_the_names_are_it_is_strict_json_and_reads_back(table: Table) -> None:
    content = parsed(table)
    assert [(each["workload"], each["cell"], each["test"], each["options"]) for each in content["cells"]] == [
        (row.cell.key.workload, row.cell.key.cell, row.cell.key.test, row.cell.key.options) for row in table.rows
    ]


@settings(max_examples=15)
@given(tables())
def test_the_numbers_are_those_of_the_table(table: Table) -> None:
    for cell, row in zip(parsed(table)["cells"], table.rows, strict=True):
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
    counts = {"ok": 7, "failed": 7, "timeout": 1, "infrastructure": 1, "interrupted": 0, "did not run": 1}
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


def test_a_matrix_of_nothing_is_one() -> None:
    assert parsed(triage_of([]))["cells"] == []
