"""The event log of a rank."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rank_events import returned

from pytest_aorta.launch.child.rank_files import (
    event_log,
    has_ended,
    log_event,
    read_new,
    read_rank,
    write_exit,
)
from pytest_aorta.launch.diagnosis.evidence import RankEvidence, RankExit
from pytest_aorta.trials.records import to_json


@given(st.data())
def test_an_event_log_that_was_torn_at_any_byte_is_read_up_to_there(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    lines = [to_json(event).encode() + b"\n" for event in returned(True)]
    text = b"".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    event_log(folder, 0).write_bytes(text[:cut])

    ends = list(itertools.accumulate(len(line) for line in lines))
    # A line counts once its last brace is there; the newline may be missing.
    complete = sum(1 for end in ends if cut >= end - 1)
    assert read_rank(RankEvidence(0), folder).events == returned(True)[:complete]


def test_complete_lines_of_a_growing_log_are_read_once(tmp_path: Path) -> None:
    path = event_log(tmp_path, 0)
    assert read_new(path, 0) == ([], 0)
    path.write_text('{"type": "lived"}\n{"type": "beg')
    events, offset = read_new(path, 0)
    assert events == [{"type": "lived"}]
    with path.open("a") as file:
        file.write('in", "phase": "run"}\n')
    events, offset = read_new(path, offset)
    assert events == [{"type": "begin", "phase": "run"}]
    assert read_new(path, offset) == ([], offset)


def test_the_end_of_a_rank_is_read_after_a_line_that_its_process_has_torn(tmp_path: Path) -> None:
    event_log(tmp_path, 0).write_text('{"type": "lived"}\n{"type": "e')
    assert not has_ended(tmp_path, 0)
    write_exit(tmp_path, 0, RankExit(-9, at=2.0), overdue=1.0)
    found = read_rank(RankEvidence(0), tmp_path)
    assert has_ended(tmp_path, 0)
    assert (found.events, found.exit, found.overdue) == ([{"type": "lived"}], RankExit(-9, at=2.0), 1.0)

    assert [event["type"] for event in read_new(event_log(tmp_path, 0), 0)[0]] == ["lived", "over"]


def test_the_end_that_an_earlier_pytest_has_written_is_not_that_of_the_rank(tmp_path: Path) -> None:
    write_exit(tmp_path, 0, RankExit(1, at=2.0), overdue=1.0)
    log_event(tmp_path, 0, {"type": "begin", "phase": "run"})
    found = read_rank(RankEvidence(0), tmp_path)
    assert not has_ended(tmp_path, 0)
    assert (found.exit, found.overdue) == (None, None)
