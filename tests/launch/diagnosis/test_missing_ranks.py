"""Which rank the others have waited for, from stacks and flight recorders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.rank_events import SETUP_DONE, raised, returned

from pytest_aorta.launch.child.rank_files import (
    attempt_evidence,
    attempt_folder,
    collectives_file,
    log_event,
    write_exit,
    write_start,
)
from pytest_aorta.launch.diagnosis.evidence import RankExit, TrialEvidence
from pytest_aorta.launch.diagnosis.judge import Judgement, judge
from pytest_aorta.trials.records import Event, to_json

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

#: When the deadline passed.
OVERDUE = 2000.0


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


def judgement(
    folder: Path,
    logs: list[list[Event]],
    dumps: dict[int, str] | None = None,
    traces: Mapping[int, dict[str, Any] | str] | None = None,
    codes: dict[int, int] | None = None,
    *,
    overdue: float | None = OVERDUE,
) -> Judgement:
    """Of ranks with these event logs, stacks, recorders, and exits before the deadline."""
    attempt = attempt_folder(folder, 0)
    write_start(attempt_folder(folder, 0), {rank: rank for rank in range(len(logs))}, len(logs), "here:1")
    for rank, events in enumerate(logs):
        for event in events:
            log_event(attempt, rank, event)
    for rank, text in (dumps or {}).items():
        (attempt / f"rank_{rank}.stacks.log").write_text(text)
    for rank, trace in (traces or {}).items():
        collectives_file(attempt, rank).write_text(trace if isinstance(trace, str) else json.dumps(trace))
    for rank, code in (codes or {}).items():
        write_exit(attempt_folder(folder, 0), rank, RankExit(code, at=1000.0, stopped=False))
    return judge(TrialEvidence.from_json(to_json(attempt_evidence(folder, 0, "elastic", None, overdue=overdue))))


def test_the_rank_that_others_wait_for_is_missing(tmp_path: Path) -> None:
    found = judgement(tmp_path, [SETUP_DONE] * 3, {0: WAITS, 1: SLEEPS, 2: WAITS})

    assert found.hung_rank == 1
    assert found.location == (
        "rank 1 is missing: nap() at it.py line 9; rank 0: all_reduce in run() at it.py line 12; "
        "rank 2: all_reduce in run() at it.py line 12"
    )
    assert [each.blame for each in found.ranks] == ["collateral", "cause", "collateral"]
    assert [each.failure.message for each in found.ranks[:2] if each.failure] == [
        "the deadline passed in run(); all_reduce in run() at it.py line 12",
        "the deadline passed in run(); nap() at it.py line 9",
    ]
    assert found.failure is not None
    assert found.failure.rank == 1


def test_where_no_stack_shows_a_collective_the_rank_that_has_entered_fewer_is_missing(tmp_path: Path) -> None:
    found = judgement(tmp_path, [SETUP_DONE] * 2, {0: SLEEPS}, {0: entered(7), 1: entered(6)})

    assert found.hung_rank == 1
    assert found.location == (
        "rank 1 is missing: it gave no stack (last: gloo:all_reduce number 6); "
        "rank 0: nap() at it.py line 9 (last: gloo:all_reduce number 7)"
    )
    assert [each.collateral for each in found.ranks] == [True, False]
    assert [each.collective for each in found.ranks] == ["gloo:all_reduce number 7", "gloo:all_reduce number 6"]


def test_a_rank_without_a_stack_that_has_entered_the_newest_collective_is_not_missing(tmp_path: Path) -> None:
    traces = {0: entered(7), 1: entered(7), 2: entered(6)}
    found = judgement(tmp_path, [SETUP_DONE] * 3, {0: WAITS, 2: SLEEPS}, traces)

    assert found.hung_rank == 2
    assert "rank 1: it gave no stack (last: gloo:all_reduce number 7)" in str(found.location)
    assert [each.blame for each in found.ranks] == ["collateral", "collateral", "cause"]


@pytest.mark.parametrize("other", [entered(7), entered(6, "tensor_parallel"), {"entries": []}, "torn"])
def test_collectives_that_cannot_be_compared_blame_no_rank(tmp_path: Path, other: dict[str, Any] | str) -> None:
    found = judgement(tmp_path, [SETUP_DONE] * 2, {}, {0: entered(7), 1: other})

    assert found.hung_rank is None
    assert "missing" not in str(found.location)


def test_a_rank_for_which_a_process_group_has_given_up_is_the_cause(tmp_path: Path) -> None:
    gave_up = raised("[../tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete")
    lost = raised("[../tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234")
    found = judgement(
        tmp_path,
        [gave_up, SETUP_DONE, lost],
        {1: SLEEPS},
        {0: entered(7), 1: entered(6)},
        codes={0: 1},
        overdue=None,
    )

    assert found.failure is not None
    assert (found.failure.rank, found.failure.kind) == (1, "exception")
    assert found.failure.message.startswith(
        "rank 1 is missing: nap() at it.py line 9 (last: gloo:all_reduce number 6); "
    )
    assert "rank 0: raised RuntimeError: [../tcp/unbound_buffer.cc:78] Timed out waiting" in found.failure.message
    assert [each.blame for each in found.ranks] == ["collateral", "cause", "collateral"]
    assert found.hung_rank is None


LOST = "[../tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234"


@pytest.mark.parametrize(
    ("ranks", "cause"),
    [
        ("lost done lost", 1),  # it left the others alone
        ("done lost done", 1),  # it has entered one more
        ("lost done", None),  # the one or the other
        ("lost done lost done", None),
        ("lost lost lost", None),
    ],
)
def test_a_rank_that_was_done_is_blamed_by_more_than_one_other(tmp_path: Path, ranks: str, cause: int | None) -> None:
    logs = [raised(LOST) if each == "lost" else returned(True) for each in ranks.split()]

    found = judgement(tmp_path, logs, overdue=None)

    assert found.failure is not None
    assert (found.failure.rank, found.failure.confidence) == (cause, "unknown" if cause is None else "likely")
    assert [each.rank for each in found.ranks if each.blame == "cause"] == ([] if cause is None else [cause])


def test_the_rank_that_an_unexpected_size_ends_is_not_the_cause(tmp_path: Path) -> None:
    sizes = {1: entered(7), 2: entered(7)}
    for size, trace in zip((8, 4), sizes.values(), strict=True):
        trace["entries"][6] |= {"input_sizes": [[size]], "input_dtypes": ["Float"]}
    # That of a command, which all its processes share.
    (tmp_path / "stderr.log").write_text(
        "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4.\n"
        f"RuntimeError: {LOST}\n"
    )

    found = judgement(tmp_path, [SETUP_DONE, raised(LOST), raised(LOST)], {}, sizes, codes={0: -6}, overdue=None)

    assert found.failure is not None
    assert (found.failure.rank, found.failure.kind, found.failure.confidence) == (None, "signal", "unknown")
    assert found.failure.message.startswith(
        "collective 7 differs: rank 1: gloo:all_reduce of Float[8]; rank 2: gloo:all_reduce of Float[4]; rank 0: ended"
    )
    assert [each.blame for each in found.ranks] == ["unknown"] * 3


def test_of_several_ranks_that_the_others_wait_for_none_is_the_cause(tmp_path: Path) -> None:
    found = judgement(tmp_path, [SETUP_DONE] * 4, {0: WAITS, 1: SLEEPS, 2: WAITS, 3: SLEEPS})

    assert found.hung_rank is None
    assert [each.blame for each in found.ranks] == ["collateral", "unknown", "collateral", "unknown"]
    assert found.failure is not None
    assert (found.failure.rank, found.failure.evidence) == (None, "ranks 0,2 waited for ranks 1,3")
    assert str(found.location).startswith("rank 1 is missing: nap() at it.py line 9; rank 3 is missing: ")


def test_ranks_that_wait_in_different_collectives_wait_for_the_one_that_differs_from_most(tmp_path: Path) -> None:
    other = entered(7)
    other["entries"][6]["profiling_name"] = "gloo:broadcast"
    found = judgement(
        tmp_path, [SETUP_DONE] * 3, dict.fromkeys(range(3), WAITS), {0: entered(7), 1: other, 2: entered(7)}
    )

    assert (found.hung_rank, [each.blame for each in found.ranks]) == (1, ["collateral", "cause", "collateral"])
    assert found.failure is not None
    assert found.failure.evidence == "collective 7 differs: rank 1: gloo:broadcast; ranks 0,2: gloo:all_reduce"
