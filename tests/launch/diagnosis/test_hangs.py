"""What the stacks of several ranks say together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.launch.diagnosis.flight_recorder import LastCollective
from pytest_aorta.launch.diagnosis.hangs import explain_hang, read_collectives
from pytest_aorta.launch.diagnosis.root_cause import root_cause
from pytest_aorta.trials.events import RankData

WAITS = """\
Current thread 0x1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/home/me/it.py", line 12 in run
"""
SLEEPS = """\
Current thread 0x1 (most recent call first):
  File "/home/me/it.py", line 9 in nap
  File "/home/me/it.py", line 11 in run
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def record(rank: int, failure: dict[str, Any] | None, exit_code: int | None = None) -> Any:
    failure = None if failure is None else {"phase": "run", "message": "m", "rank": rank, **failure}
    return {"rank": rank, "failure": failure, "exit_code": exit_code, "signal": None, "collateral": False}


def report(folder: Path, records: list[RankData], dumps: dict[int, str]) -> tuple[str, int | None]:
    for rank, text in dumps.items():
        (folder / f"{rank}").write_text(text)
    found = explain_hang(records, lambda rank: folder / f"{rank}", None)
    return found.text, found.rank


HUNG = {"kind": "timeout"}


def test_the_rank_that_others_wait_for_is_missing(folder: Path) -> None:
    records = [record(0, HUNG), record(1, HUNG), record(2, HUNG)]

    text, rank = report(folder, records, {0: WAITS, 1: SLEEPS, 2: WAITS})

    assert rank == 1
    assert text == (
        "rank 1 is missing: nap() at it.py line 9; rank 0: all_reduce in run() at it.py line 12; "
        "rank 2: all_reduce in run() at it.py line 12"
    )
    assert [each["collateral"] for each in records] == [True, False, True]
    assert [each["failure"]["message"] for each in records][:2] == [
        "m; all_reduce in run() at it.py line 12",
        "m; nap() at it.py line 9",
    ]
    cause = root_cause(records)
    assert cause is not None
    assert cause["rank"] == 1


def test_a_rank_that_has_left_is_missing(folder: Path) -> None:
    text, rank = report(folder, [record(0, None, 0), record(1, HUNG)], {1: WAITS})

    assert (text, rank) == ("rank 0 is missing: exited 0; rank 1: all_reduce in run() at it.py line 12", 0)


def test_when_all_wait_no_rank_is_missing(folder: Path) -> None:
    text, rank = report(folder, [record(0, HUNG), record(1, {"kind": "stall"})], {0: WAITS, 1: WAITS})

    assert rank is None
    assert "missing" not in text


def entered(number: int, group: str = "default_pg") -> dict[str, Any]:
    """What a flight recorder holds of a rank that has entered so many collectives."""
    entries = [
        {
            "record_id": at,
            "collective_seq_id": at + 1,
            "profiling_name": "gloo:all_reduce",
            "process_group": ["0", group],
            "is_p2p": False,
        }
        for at in range(number)
    ]
    return {"entries": [*entries, {"record_id": number, "profiling_name": "gloo:send", "is_p2p": True}]}


def recorded(folder: Path, counts: dict[int, dict[str, Any]]) -> dict[int, LastCollective]:
    for rank, content in counts.items():
        (folder / f"rank_{rank}.collectives.json").write_text(json.dumps(content))
    (folder / "rank_9.collectives.json").write_text("torn")
    return read_collectives(folder)


def test_where_no_stack_shows_a_collective_the_rank_that_has_entered_fewer_is_missing(folder: Path) -> None:
    records = [record(0, HUNG), record(1, HUNG)]
    collectives = recorded(folder, {0: entered(7), 1: entered(6)})
    (folder / "0").write_text(SLEEPS)

    found = explain_hang(records, lambda rank: folder / f"{rank}", None, collectives)

    assert found.rank == 1
    assert found.text == (
        "rank 1 is missing: it gave no stack (last: gloo:all_reduce number 6); "
        "rank 0: nap() at it.py line 9 (last: gloo:all_reduce number 7)"
    )
    assert [each["collateral"] for each in records] == [True, False]
    assert [each["collective"] for each in records] == ["gloo:all_reduce number 7", "gloo:all_reduce number 6"]


@pytest.mark.parametrize("other", [entered(7), entered(6, "tensor_parallel"), {"entries": []}])
def test_collectives_that_cannot_be_compared_blame_no_rank(folder: Path, other: dict[str, Any]) -> None:
    collectives = recorded(folder, {0: entered(7), 1: other})

    found = explain_hang([record(0, HUNG), record(1, HUNG)], lambda rank: None, None, collectives)

    assert found.rank is None
    assert "missing" not in found.text


def test_the_only_rank_that_hung_is_to_blame(folder: Path) -> None:
    text, rank = report(folder, [record(0, None), record(1, HUNG)], {1: SLEEPS})

    assert (text, rank) == ("rank 0: exited 0; rank 1: nap() at it.py line 9", 1)


def test_other_exits_are_described_in_short(folder: Path) -> None:
    records = [
        record(0, {"kind": "exception", "type": "ValueError"}),
        record(1, {"kind": "signal", "message": "ended by SIGSEGV in run()"}),
        record(2, HUNG),
    ]

    text, _ = report(folder, records, {})

    assert text == "rank 0: raised ValueError; rank 1: ended by SIGSEGV in run(); rank 2: it gave no stack"
