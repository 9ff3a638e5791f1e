"""What rank 0 reads of the other ranks under an outer launcher."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pytest_aorta.launch.child.event_log import event_log, read_event_log
from pytest_aorta.launch.host.external_ranks import gather_rank_records, rank_folder, report_exit


def test_an_exit_is_read_behind_a_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    folder = tmp_path / "trial_0"
    own = rank_folder(folder, 1)
    for each in (folder, own):
        each.mkdir()
    event_log(own, 1).write_text('{"type": "begin", "phase": "setup"}\n{"type": "end", "pha')

    report_exit(own, 1, -signal.SIGKILL)

    assert read_event_log(own, 1).phase == "setup"
    records = gather_rank_records(folder, 0)
    assert [(record["rank"], record["signal"]) for record in records] == [(0, None), (1, "SIGKILL")]
    assert not event_log(own, 1).exists()


def test_a_rank_that_reports_no_exit_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    folder = tmp_path / "trial_0"
    folder.mkdir()

    records = gather_rank_records(folder, 3, patience=0.0)

    assert [record["exit_code"] for record in records] == [3, None]
    assert records[1]["collateral"]
