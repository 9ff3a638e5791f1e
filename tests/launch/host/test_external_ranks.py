"""What rank 0 reads of the other ranks under an outer launcher."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.rank_events import returned

from pytest_aorta.launch.child.attempt_files import EventLogWriter, event_log, read_events
from pytest_aorta.launch.diagnosis.judge import judge
from pytest_aorta.launch.host.evidence import gather_evidence, rank_folder, report_exit


def test_an_exit_is_read_behind_a_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    folder = tmp_path / "trial_0"
    own = rank_folder(folder, 1)
    for each in (folder, own):
        each.mkdir()
    event_log(own, 1).write_text('{"type": "begin", "phase": "setup"}\n{"type": "end", "pha')

    report_exit(own, 1, -signal.SIGKILL)

    assert read_events(own, 1) == [{"type": "begin", "phase": "setup"}]
    records = judge(gather_evidence(folder, 0, None)).ranks
    assert [(record["rank"], record["signal"]) for record in records] == [(0, None), (1, "SIGKILL")]
    assert not event_log(own, 1).exists()


def test_a_rank_of_which_nothing_comes_is_never_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    folder = tmp_path / "trial_0"
    folder.mkdir()

    failed = judge(gather_evidence(folder, 3, None, patience=0.0))
    log = EventLogWriter(event_log(folder, 0))
    for event in returned(True):
        log.send(event)
    fine = judge(gather_evidence(folder, 0, None, patience=0.0))

    assert [record["exit_code"] for record in failed.ranks] == [3, None]
    assert [record["blame"] for record in failed.ranks] == ["cause", "unknown"]
    assert fine.failure is not None
    assert (fine.failure["kind"], fine.failure["rank"]) == ("rank", 1)
    assert "never heard of" in fine.failure["message"]
