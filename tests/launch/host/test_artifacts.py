"""Which files of a trial its record names, and which are removed when it is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aorta.launch.host.trial_files import collect_artifacts, stacks_to_read
from pytest_aorta.trials.outcome import Observation
from pytest_aorta.trials.records import RankRecord


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The artifacts of a trial with two ranks, of which one has dumped its stacks."""
    monkeypatch.delenv("RANK", raising=False)
    folder = tmp_path / "trial_0"
    (folder / "attempt_0").mkdir(parents=True)
    files = {
        "stdout.log": "said",
        "stacks.log": "",
        "rank_0.events": "{}",
        "torchrun.json": "{}",
        "attempt_0/rank_0.stacks.log": "",
        "attempt_0/rank_1.stacks.log": "Thread 0x1",
        "attempt_0/rank_1.error.json": "{}",
        "attempt_0/rank_1.events": "{}",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


KEPT = {
    "stdout": "trial_0/stdout.log",
    "attempt_0/rank_1.stacks": "trial_0/attempt_0/rank_1.stacks.log",
    "attempt_0/rank_1.error": "trial_0/attempt_0/rank_1.error.json",
}


def test_logs_and_error_files_are_named_and_nothing_else_is_left(folder: Path) -> None:
    assert collect_artifacts(folder) == KEPT
    left = {path.relative_to(folder.parent).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == set(KEPT.values())


def test_another_rank_of_an_outer_launcher_leaves_its_event_log_to_rank_0(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")

    collect_artifacts(folder)

    assert (folder / "rank_0.events").exists()


def test_the_stacks_to_read_first_are_those_of_the_rank_that_hung() -> None:
    record = RankRecord(1, stacks=KEPT["attempt_0/rank_1.stacks"])
    artifacts = {**KEPT, "stacks": "trial_0/stacks.log"}

    assert stacks_to_read(Observation(ranks=[record], hung_rank=1), artifacts) == record.stacks
    assert stacks_to_read(Observation(ranks=[record], hung_rank=0), artifacts) == "trial_0/stacks.log"
    assert stacks_to_read(Observation(), KEPT) is None
