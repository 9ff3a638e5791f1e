"""Whether an earlier run was looked at decides which statistics hold for the resumed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.triage_facts import trials

from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.matrix import EarlierMatrix, RunState, matrix_json
from pytest_aorta.triage.verdicts import triage_of

NONE = CellKey("gemm", "local-none")


def leave(results: Path, *, planned: int, sequential: bool = False, complete: bool = True) -> None:
    table = triage_of(trials("none", "F.F."), TriageSettings(sequential=sequential))
    state = RunState(planned={NONE: planned}, complete=complete)
    (results / "matrix.json").write_text(matrix_json(table, state))


def test_a_plan_of_another_size_was(tmp_path: Path) -> None:
    leave(tmp_path, planned=4)
    assert EarlierMatrix(tmp_path).was_looked_at({NONE: 8})
    assert EarlierMatrix(tmp_path).was_looked_at({NONE: 2})
    assert not EarlierMatrix(tmp_path).was_looked_at({NONE: 4})


def test_one_that_was_ended_early_goes_on_to_the_number_that_was_planned(tmp_path: Path) -> None:
    leave(tmp_path, planned=20, complete=False)
    assert not EarlierMatrix(tmp_path).was_looked_at({NONE: 20})


def test_once_looked_at_stays_looked_at(tmp_path: Path) -> None:
    leave(tmp_path, planned=8, sequential=True)
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
