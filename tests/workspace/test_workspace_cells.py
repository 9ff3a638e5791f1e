"""One folder, one cell: which files move where before a run, and that no sequence of runs loses or doubles a record."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from support.records import record

from pytest_aorta.workspace.atomic import write_json
from pytest_aorta.workspace.history import cell_of, sort_into_cells


def put(path: Path, **changes: Any) -> Path:
    """Write a trial file, and a log beside it."""
    write_json(path, record(**changes))
    path.with_suffix("").mkdir()
    (path.with_suffix("") / "stdout.log").write_text(str(changes))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_flat_files_move_to_the_cells_that_they_name(tmp_path: Path) -> None:
    put(tmp_path / "probe" / "trial_0.json")
    put(tmp_path / "probe" / "trial_1.json", cell="local-a+b", trial_index=1, exit_status="infrastructure_failed")
    (tmp_path / "probe" / "trial_1.rank_1").mkdir()
    (tmp_path / "probe" / "trial_1.rank_1" / "stdout.log").touch()
    put(tmp_path / "other" / "trial_0.json")
    sort_into_cells(tmp_path, "probe", None, "now")
    assert names(tmp_path / "probe") == [
        "local-a+b/trial_1.json",
        "local-a+b/trial_1.rank_1/stdout.log",
        "local-a+b/trial_1/stdout.log",
        "local-none/trial_0.json",
        "local-none/trial_0/stdout.log",
    ]
    assert names(tmp_path / "other") == ["trial_0.json", "trial_0/stdout.log"]
    sort_into_cells(tmp_path, "probe", None, "now")
    sort_into_cells(tmp_path, "of no such name", None, "now")


def test_no_cell_leads_out_of_the_workload_s_folder(tmp_path: Path) -> None:
    put(tmp_path / "probe" / "trial_0.json", cell="../../elsewhere")
    sort_into_cells(tmp_path, "probe", None, "now")
    assert [len(PurePosixPath(name).parts) for name in names(tmp_path / "probe")] == [2, 3]


@pytest.mark.parametrize("taken", ["local-none/trial_0.json", "local-none/trial_0/stdout.log"])
def test_nothing_moves_where_something_else_lies(tmp_path: Path, taken: str) -> None:
    file = put(tmp_path / "probe" / "trial_0.json")
    there = tmp_path / "probe" / taken
    there.parent.mkdir(parents=True)
    there.write_text("another's")
    sort_into_cells(tmp_path, "probe", None, "now")
    assert file.exists()
    assert (tmp_path / "probe" / "trial_0" / "stdout.log").read_text() == "{}"
    assert there.read_text() == "another's"


def test_a_move_that_was_cut_short_is_gone_on_with(tmp_path: Path) -> None:
    put(tmp_path / "probe" / "trial_0.json")
    (tmp_path / "probe" / "local-none").mkdir()
    (tmp_path / "probe" / "trial_0").rename(tmp_path / "probe" / "local-none" / "trial_0")
    sort_into_cells(tmp_path, "probe", None, "now")
    assert names(tmp_path / "probe") == ["local-none/trial_0.json", "local-none/trial_0/stdout.log"]


def test_torn_files_stay(tmp_path: Path) -> None:
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "trial_0.json").write_text("{")
    sort_into_cells(tmp_path, "probe", None, "now")
    assert names(tmp_path / "probe") == ["trial_0.json"]


def test_a_plan_of_one_cell_has_its_files_in_the_workload_s_folder_and_those_of_others_in_theirs(
    tmp_path: Path,
) -> None:
    put(tmp_path / "probe" / "trial_0.json", cell="local-a")
    put(tmp_path / "probe" / "trial_1.json")
    put(tmp_path / "probe" / "local-none" / "trial_2.json")
    put(tmp_path / "probe" / "local-b" / "trial_0.json", cell="local-b")
    sort_into_cells(tmp_path, "probe", "local-none", "now")
    assert [name for name in names(tmp_path / "probe") if name.endswith(".json")] == [
        *("local-a/trial_0.json", "local-b/trial_0.json", "trial_1.json", "trial_2.json")
    ]
    assert not (tmp_path / "probe" / "local-none").exists()


@pytest.mark.parametrize("later", ["flat", "nested"])
def test_of_two_records_of_one_trial_the_later_one_stays(tmp_path: Path, later: str) -> None:
    for name, folder in (("flat", ""), ("nested", "local-none")):
        year = 2027 if name == later else 2026
        put(tmp_path / "probe" / folder / "trial_0.json", host=name, started_at=f"{year}-01-01T00:00:00.000+00:00")
    sort_into_cells(tmp_path, "probe", None, "now")
    (stays,) = (tmp_path / "probe").rglob("*.json")
    assert stays == tmp_path / "probe" / "local-none" / "trial_0.json"
    assert json.loads(stays.read_text())["host"] == later
    assert later in (stays.with_suffix("") / "stdout.log").read_text()
    assert names(tmp_path / ".history" / "now" / "probe") in (
        ["trial_0.json", "trial_0/stdout.log"],
        ["local-none/trial_0.json", "local-none/trial_0/stdout.log"],
    )


def test_the_cell_is_read_from_any_json_and_from_no_part_of_the_results(tmp_path: Path) -> None:
    file = tmp_path / "trial_0.json"
    for content in (record(cell='a"b\\'), {"metrics": {"cell": "no"}, **record(cell='a"b\\')}):
        write_json(file, content)
        assert cell_of(file) == 'a"b\\'
        file.write_text(json.dumps(content))
        assert cell_of(file) == 'a"b\\'
    for text in ("", "{", "[]", "null", '{"metrics": {"cell": "no"}}', '{"cell": 1}'):
        file.write_text(text)
        assert cell_of(file) is None
