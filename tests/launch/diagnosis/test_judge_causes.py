"""The records of ranks, and which of their failures the others follow from."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rank_events import SETUP_DONE, raised, returned

from pytest_aorta.launch.child.rank_files import (
    attempt_evidence,
    attempt_folder,
    log_event,
    write_exit,
    write_start,
)
from pytest_aorta.launch.diagnosis.evidence import RankExit, TrialEvidence
from pytest_aorta.launch.diagnosis.judge import Judgement, judge
from pytest_aorta.trials.records import Event, RankRecord, to_json


def judgement_of(
    folder: Path,
    logs: list[list[Event]],
    codes: dict[int, int] | None = None,
    at: dict[int, int] | None = None,
) -> Judgement:
    """Of ranks with these event logs; ``codes`` as an agent saw them that does not say which ranks it has ended."""
    write_start(attempt_folder(folder, 0), {rank: rank for rank in range(len(logs))}, len(logs), "here:1")
    for rank, events in enumerate(logs):
        for event in events:
            log_event(attempt_folder(folder, 0), rank, event)
    for rank, code in (codes or {}).items():
        write_exit(attempt_folder(folder, 0), rank, RankExit(code, 100 + rank, (at or {}).get(rank, 1000)))
    return judge(TrialEvidence.from_json(to_json(attempt_evidence(folder, 0, "elastic", None))))


def records_of(*arguments: Any, **keywords: Any) -> list[RankRecord]:
    return judgement_of(*arguments, **keywords).ranks


def test_ranks_that_all_passed_have_no_failure(tmp_path: Path) -> None:
    found = judgement_of(tmp_path, [returned(True), returned(True)])

    records = found.ranks
    assert [record.failure for record in records] == [None, None]
    assert [record.exit_code for record in records] == [0, 0]
    assert [record.passed for record in records] == [True, True]
    assert [record.blame for record in records] == [None, None]
    assert found.failure is None


@pytest.mark.parametrize(
    ("code", "later", "collateral"),
    [
        (-signal.SIGTERM, 0, True),
        (-signal.SIGTERM, 30, True),
        (-signal.SIGKILL, 30, True),
        (-signal.SIGKILL, 0, False),
        (-signal.SIGKILL, 1, False),
        (-signal.SIGSEGV, 30, False),
        (3, 30, False),
    ],
)
def test_a_rank_that_was_ended_by_term_or_later_by_kill_is_collateral(
    tmp_path: Path, code: int, later: int, collateral: bool
) -> None:
    records = records_of(tmp_path, [raised("boom"), SETUP_DONE], {0: 1, 1: code}, at={0: 1000, 1: 1000 + later})

    assert [record.collateral for record in records] == [False, collateral]


# Root causes: of two ranks, which one is it?

PASSED, UNDONE = returned(True), SETUP_DONE

CAUSES: list[tuple[str, list[list[Event]], dict[int, int], int | None]] = [
    ("a fatal signal beats an exception", [raised("connection closed"), UNDONE], {0: 1, 1: -11}, 1),
    ("a kill for memory beats an exception", [raised("connection closed"), UNDONE], {0: 1, 1: -9}, 1),
    ("an early exit beats an exception", [raised("connection closed"), UNDONE], {0: 1, 1: 3}, 1),
    ("a fatal signal beats an abort", [UNDONE, UNDONE], {0: -6, 1: -11}, 1),
    ("an exception beats an abort", [UNDONE, raised("boom")], {0: -6, 1: 1}, 1),
    ("an abort alone is the cause", [PASSED, UNDONE], {1: -6}, 1),
    ("an abort beats a rank ended by the agent", [UNDONE, UNDONE], {0: -15, 1: -6}, 1),
    ("an exception beats a rank ended by the agent", [UNDONE, raised("boom")], {0: -15, 1: 1}, 1),
    ("an exception beats a rank ended unseen", [UNDONE, raised("boom")], {1: 1}, 1),
    ("a result beats a rank ended by the agent", [UNDONE, returned(False)], {0: -15}, 1),
    ("an exception beats a result", [raised("boom", at=2.0), returned(False)], {0: 1}, 0),
    ("the earlier exception", [raised("second", at=2.0), raised("first", at=1.0)], {0: 1, 1: 1}, 1),
    ("of two at once neither", [raised("a", at=1.0), raised("b", at=1.1)], {0: 1, 1: 1}, None),
    ("of two that fail alike neither", [raised("step 1", at=1.0), raised("step 2", at=9.0)], {0: 1, 1: 1}, None),
    ("of two signals at once neither", [UNDONE, UNDONE], {0: -11, 1: -7}, None),
    (
        "of two results neither: ranks exchange values",
        [PASSED, returned(False), returned(False)],
        {},
        None,
    ),
    ("nor where rank 0 has the same", [returned(False), returned(False)], {}, None),
    ("the result that went wrong first", [returned(False, 7), returned(False, 3), returned(False, 7)], {}, 1),
    ("neither of two that went wrong first", [returned(False, 7), returned(False, 3), returned(False, 3)], {}, None),
    ("the rank that the results name", [returned(False, 3, names=2)] * 3, {}, 2),
    ("none where they have their own words", [returned(False, 3, names=1), returned(False, 3, names="one")], {}, 1),
    ("neither of two that they name", [returned(False, 3, names=2), returned(False, 3, names=1)], {}, None),
    ("neither where one does not say when", [PASSED, returned(False, 3), returned(False)], {}, None),
    ("setup counts as run does", [UNDONE, raised("boom", phase="setup")], {1: 1}, 1),
    ("the result of rank 0 is that of the trial", [returned(False), PASSED], {}, None),
    ("another rank's result counts", [PASSED, returned(False)], {}, 1),
    ("a failing cleanup is no cause", [PASSED, raised("busy", phase="cleanup")], {}, None),
    ("a failing cleanup hides no result", [raised("busy", phase="cleanup"), returned(False)], {}, 1),
    ("nor does the end that a crash in cleanup brings to another rank", [PASSED[:5], UNDONE], {0: -11}, None),
    ("ranks of which nothing else is known", [UNDONE, UNDONE], {0: -15, 1: -15}, None),
    ("nothing at all", [PASSED, PASSED], {}, None),
]


@pytest.mark.parametrize(("logs", "codes", "rank"), [case[1:] for case in CAUSES], ids=[case[0] for case in CAUSES])
def test_the_failure_that_the_others_follow_from(
    tmp_path: Path, logs: list[list[Event]], codes: dict[int, int], rank: int | None
) -> None:
    found = judgement_of(tmp_path, logs, codes)

    failure = found.failure
    assert (None if failure is None else failure.rank) == rank
    if failure is not None:
        assert failure.evidence
        assert failure.message.startswith("rank" if rank is None else f"rank {rank}: ")
        assert (failure.confidence == "unknown") == (rank is None)
        assert [record.rank for record in found.ranks if record.blame == "cause"] == ([] if rank is None else [rank])


LOST = "[../tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"
kinds = st.sampled_from(
    [
        *(returned(True), returned(False), returned(False, 3), returned(False, 3, names=1)),
        *(raised("x"), raised("x", at=1000.0), raised("y", phase="setup"), raised(LOST), UNDONE, []),
    ]
)
codes = st.sampled_from([None, 0, 1, 3, -6, -9, -11, -15])


@given(st.lists(st.tuples(kinds, codes), min_size=1, max_size=5))
def test_whatever_happens_to_ranks_other_than_0_is_never_hidden(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[tuple[list[Event], int | None]]
) -> None:
    folder = tmp_path_factory.mktemp("ranks")
    codes = {rank: code for rank, (_, code) in enumerate(ranks) if code is not None}

    found = judgement_of(folder, [events for events, _ in ranks], codes)

    records = found.ranks
    if found.failure is not None:
        rank, confidence = found.failure.rank, found.failure.confidence
        assert [record.rank for record in records if record.blame == "cause"] == ([] if rank is None else [rank])
        assert (confidence == "unknown") == (rank is None)
        assert found.failure.evidence
    for record in records:
        if found.failure is None and (failure := record.failure) is not None:
            assert failure.phase == "cleanup" or record.collateral
    for record, (events, _) in zip(records[1:], ranks[1:], strict=True):
        assert record.failure is not None or events == PASSED
