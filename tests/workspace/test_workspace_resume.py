"""Which results may stand for a trial, and what changes in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.records import record

from pytest_aorta.workspace.atomic import write_json
from pytest_aorta.workspace.trial_store import read_kept, read_record, retitle


def put(path: Path, **changes: Any) -> Path:
    """Write a trial file, and a log beside it."""
    write_json(path, record(**changes))
    path.with_suffix("").mkdir()
    (path.with_suffix("") / "stdout.log").write_text(str(changes))
    return path


@pytest.mark.parametrize("status", ["ok", "workload_failed", "timeout"])
def test_what_says_something_about_the_workload_is_kept(tmp_path: Path, status: str) -> None:
    kept = read_kept(put(tmp_path / "trial_0.json", exit_status=status))
    assert kept is not None
    assert kept.exit_status == status


@pytest.mark.parametrize("changes", [{"exit_status": "infrastructure_failed"}, {"request_fingerprint": None}])
def test_what_does_not_is_not(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = put(tmp_path / "trial_0.json", **changes)
    assert read_kept(file) is None
    assert read_record(file) is not None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', "{}", "[" * 100_000, '{"trial_id": "x"}'])
def test_nor_is_what_is_no_record(tmp_path: Path, content: str) -> None:
    file = tmp_path / "trial_0.json"
    file.write_text(content)
    assert read_kept(file) is None


def test_nor_what_is_not_there_or_is_no_text(tmp_path: Path) -> None:
    assert read_kept(tmp_path / "trial_0.json") is None
    assert read_kept(tmp_path) is None
    (tmp_path / "trial_0.json").write_bytes(b"\xff\xfe")
    assert read_kept(tmp_path / "trial_0.json") is None


def test_nor_is_any_beginning_of_a_record(tmp_path: Path) -> None:
    whole = json.dumps(record(), indent=1).encode()
    for length in range(0, len(whole), 7):
        (tmp_path / "trial_0.json").write_bytes(whole[:length])
        assert read_kept(tmp_path / "trial_0.json") is None, length


def test_a_new_name_is_all_that_changes(tmp_path: Path) -> None:
    file = put(tmp_path / "trial_0.json", of_a_later_schema={"a": [1, "NaN"]}, wall_clock_sec="Infinity")
    before = file.read_bytes()
    retitle(file, "probe_d0_m0_t0")
    assert file.read_bytes() == before
    retitle(file, "probe_d3_m1_t0")
    assert file.read_bytes() == before.replace(b"probe_d0_m0_t0", b"probe_d3_m1_t0")
