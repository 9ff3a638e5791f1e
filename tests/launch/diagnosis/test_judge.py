"""Which failures of ranks the others follow from, and which rank they have waited for: what no recorded run shows."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rank_events import SETUP_DONE, raised, returned

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.child.elastic import reason_of
from pytest_aorta.launch.child.rank_files import (
    attempt_evidence,
    attempt_folder,
    collectives_file,
    log_event,
    write_exit,
    write_start,
    write_stop,
)
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, AttemptEvidence, RankEvidence, RankExit
from pytest_aorta.launch.diagnosis.judge import Judgement, agent_failure, judge
from pytest_aorta.trials.records import Event, to_json

PASSED, UNDONE = returned(True), SETUP_DONE
LOST = "[../tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234"


def judgement(
    folder: Path,
    logs: list[list[Event]],
    codes: Mapping[int, int] | None = None,
    *,
    at: Mapping[int, float] | None = None,
    stopped: bool | None = None,
    dumps: Mapping[int, str] | None = None,
    traces: Mapping[int, dict[str, Any]] | None = None,
    overdue: float | None = None,
) -> Judgement:
    """Of ranks with these event logs, exits, stacks and recorders; ``stopped`` is what an agent knows of the exits."""
    attempt = attempt_folder(folder, 0)
    write_start(attempt, {rank: rank for rank in range(len(logs))}, len(logs), "here:1")
    for rank, events in enumerate(logs):
        for event in events:
            log_event(attempt, rank, event)
    for rank, text in (dumps or {}).items():
        (attempt / f"rank_{rank}.stacks.log").write_text(text)
    for rank, trace in (traces or {}).items():
        collectives_file(attempt, rank).write_text(json.dumps(trace))
    for rank, code in (codes or {}).items():
        write_exit(attempt, rank, RankExit(code, 100 + rank, (at or {}).get(rank, 1000.0), stopped=stopped))
    return judge(AttemptEvidence.from_json(to_json(attempt_evidence(folder, 0, "elastic", None, overdue=overdue))))


def test_ranks_that_all_passed_have_no_failure(tmp_path: Path) -> None:
    found = judgement(tmp_path, [returned(True), returned(True)])

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
    records = judgement(tmp_path, [raised("boom"), UNDONE], {0: 1, 1: code}, at={1: 1000.0 + later}).ranks

    assert [record.collateral for record in records] == [False, collateral]


# Root causes: of two ranks, which one is it?

CAUSES: list[tuple[str, list[list[Event]], dict[int, int], int | None]] = [
    ("a fatal signal beats an exception", [raised("connection closed"), UNDONE], {0: 1, 1: -11}, 1),
    ("a kill for memory beats an exception", [raised("connection closed"), UNDONE], {0: 1, 1: -9}, 1),
    ("an early exit beats an exception", [raised("connection closed"), UNDONE], {0: 1, 1: 3}, 1),
    ("a fatal signal beats an abort", [UNDONE, UNDONE], {0: -6, 1: -11}, 1),
    ("an exception beats an abort", [UNDONE, raised("boom")], {0: -6, 1: 1}, 1),
    ("a result beats a rank ended by the agent", [UNDONE, returned(False)], {0: -15}, 1),
    ("an exception beats a result", [raised("boom", at=2.0), returned(False)], {0: 1}, 0),
    ("the earlier exception", [raised("second", at=2.0), raised("first", at=1.0)], {0: 1, 1: 1}, 1),
    ("of two at once neither", [raised("a", at=1.0), raised("b", at=1.1)], {0: 1, 1: 1}, None),
    ("of two that fail alike neither", [raised("step 1", at=1.0), raised("step 2", at=9.0)], {0: 1, 1: 1}, None),
    ("of two signals at once neither", [UNDONE, UNDONE], {0: -11, 1: -7}, None),
    ("of two results neither", [PASSED, returned(False), returned(False)], {}, None),  # ranks exchange values
    ("nor where rank 0 has the same", [returned(False), returned(False)], {}, None),
    ("the result that went wrong first", [returned(False, 7), returned(False, 3), returned(False, 7)], {}, 1),
    ("neither of two that went wrong first", [returned(False, 7), returned(False, 3), returned(False, 3)], {}, None),
    ("the rank that the results name", [returned(False, 3, names=2)] * 3, {}, 2),
    ("neither of two that they name", [returned(False, 3, names=0), returned(False, 3, names=1)], {}, None),
    ("none where they have their own words", [returned(False, 3, names=1), returned(False, 3, names="one")], {}, 1),
    ("neither where one does not say when", [PASSED, returned(False, 3), returned(False)], {}, None),
    ("setup counts as run does", [UNDONE, raised("boom", phase="setup")], {1: 1}, 1),
    ("the result of rank 0 is that of the trial", [returned(False), PASSED], {}, None),
    ("a failing cleanup is no cause", [PASSED, raised("busy", phase="cleanup")], {}, None),
    ("a failing cleanup hides no result", [raised("busy", phase="cleanup"), returned(False)], {}, 1),
    ("nor does the end that a crash in cleanup brings to another rank", [PASSED[:5], UNDONE], {0: -11}, None),
]


@pytest.mark.parametrize(("logs", "codes", "rank"), [case[1:] for case in CAUSES], ids=[case[0] for case in CAUSES])
def test_the_failure_that_the_others_follow_from(
    tmp_path: Path, logs: list[list[Event]], codes: dict[int, int], rank: int | None
) -> None:
    found = judgement(tmp_path, logs, codes)

    failure = found.failure
    assert (None if failure is None else failure.rank) == rank
    if failure is not None:
        assert failure.evidence
        assert failure.message.startswith("rank" if rank is None else f"rank {rank}: ")
        assert (failure.confidence == "unknown") == (rank is None)
        assert [record.rank for record in found.ranks if record.blame == "cause"] == ([] if rank is None else [rank])


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

    found = judgement(folder, [events for events, _ in ranks], codes)

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


# The rank that others waited for.

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


def test_the_rank_that_others_wait_for_is_missing(tmp_path: Path) -> None:
    found = judgement(tmp_path, [UNDONE] * 3, dumps={0: WAITS, 1: SLEEPS, 2: WAITS}, overdue=OVERDUE)

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
    found = judgement(tmp_path, [UNDONE] * 2, dumps={0: SLEEPS}, traces={0: entered(7), 1: entered(6)}, overdue=OVERDUE)

    assert found.hung_rank == 1
    assert found.location == (
        "rank 1 is missing: it gave no stack (last: gloo:all_reduce number 6); "
        "rank 0: nap() at it.py line 9 (last: gloo:all_reduce number 7)"
    )
    assert [each.collateral for each in found.ranks] == [True, False]
    assert [each.collective for each in found.ranks] == ["gloo:all_reduce number 7", "gloo:all_reduce number 6"]


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
    logs = [raised(LOST) if each == "lost" else PASSED for each in ranks.split()]

    found = judgement(tmp_path, logs)

    assert found.failure is not None
    assert (found.failure.rank, found.failure.confidence) == (cause, "unknown" if cause is None else "likely")
    assert [each.rank for each in found.ranks if each.blame == "cause"] == ([] if cause is None else [cause])
    if ranks == "lost done":
        assert found.failure.evidence == "rank 1 was done when rank 0 still waited"


def test_the_rank_that_an_unexpected_size_ends_is_not_the_cause(tmp_path: Path) -> None:
    sizes = {1: entered(7), 2: entered(7)}
    for size, trace in zip((8, 4), sizes.values(), strict=True):
        trace["entries"][6] |= {"input_sizes": [[size]], "input_dtypes": ["Float"]}
    # That of a command, which all its processes share.
    (tmp_path / "stderr.log").write_text(
        "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4.\n"
        f"RuntimeError: {LOST}\n"
    )

    found = judgement(tmp_path, [UNDONE, raised(LOST), raised(LOST)], {0: -6}, stopped=False, traces=sizes)

    assert found.failure is not None
    assert (found.failure.rank, found.failure.kind, found.failure.confidence) == (1, "signal", "likely")
    assert found.failure.message.startswith(
        "collective 7 differs: rank 1: gloo:all_reduce of Float[8]; rank 2: gloo:all_reduce of Float[4]; "
        "rank 0: 8 bytes came where it expected 4"
    )
    assert [each.blame for each in found.ranks] == ["collateral", "cause", "collateral"]


def test_ranks_that_wait_in_different_collectives_wait_for_the_one_that_differs_from_most(tmp_path: Path) -> None:
    other = entered(7)
    other["entries"][6]["profiling_name"] = "gloo:broadcast"
    found = judgement(
        tmp_path,
        [UNDONE] * 3,
        dumps=dict.fromkeys(range(3), WAITS),
        traces={0: entered(7), 1: other, 2: entered(7)},
        overdue=OVERDUE,
    )

    assert (found.hung_rank, [each.blame for each in found.ranks]) == (1, ["collateral", "cause", "collateral"])
    assert found.failure is not None
    assert found.failure.evidence == "collective 7 differs: rank 1: gloo:broadcast; ranks 0,2: gloo:all_reduce"


# The failure of an agent, in its own words, with the option that mends it.


def port_in_use() -> None:
    import torch.distributed as dist

    with socket.create_server(("127.0.0.1", 0)) as taken:
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], is_master=True)  # type: ignore[attr-defined]


def no_other_node() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

    raise RendezvousTimeoutError


def node_0_has_gone() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    raise RendezvousConnectionError("The connection to the C10d store has failed. See inner exception for details.")


@pytest.mark.parametrize(
    ("fails", "option"),
    [
        (port_in_use, "rdzv_endpoint="),
        (no_other_node, "nnodes=MIN:MAX"),
        (node_0_has_gone, "rdzv_endpoint="),
    ],
)
def test_an_error_names_the_option_that_mends_it(fails: Callable[[], Any], option: str) -> None:
    with pytest.raises(Exception) as raised:
        fails()
    agent, ranks = AgentEnd("the agent", error=describe_exception(raised.value)), [RankEvidence(0, started=True)]
    found = judge(AttemptEvidence("elastic", ranks=ranks, agent=agent))

    failure, [rank] = found.failure, found.ranks
    assert failure is not None
    assert failure.message.startswith(f"the agent failed: {raised.value}")
    assert option in failure.message
    assert (failure.phase, failure.type, failure.rank) == ("launch", type(raised.value).__qualname__, None)
    assert (rank.blame, rank.exit_code) == ("collateral", None)


def test_a_rank_that_is_stuck_in_the_kernel_is_an_error_of_the_agent() -> None:
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerState

    assert reason_of(RunResult(WorkerState.SUCCEEDED)) is None
    for state in (WorkerState.UNHEALTHY, WorkerState.FAILED):
        found = agent_failure(
            AttemptEvidence("elastic", agent=AgentEnd("the agent", error=reason_of(RunResult(state))))
        )
        assert found is not None
        assert "uninterruptible sleep" in found.message
        assert "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT" in found.message


# Ranks that tell their launcher nothing, and those that lose a peer only once they are asked to end.

CAUGHT = "[1] training failed: ValueError: corrupt batch 17\n"
LOST_PEER = f"[0] training failed: RuntimeError: {LOST}\n"


@pytest.mark.parametrize(
    ("logs", "codes", "cause", "confidence"),
    [
        ((LOST_PEER, CAUGHT, LOST_PEER), {0: 1, 1: 1, 2: 1}, 1, "likely"),
        ((LOST_PEER, CAUGHT, LOST_PEER), {0: 1, 1: -15, 2: 1}, 1, "likely"),  # it was still uploading its report
        ((LOST_PEER, "", LOST_PEER), {0: 1, 1: -15, 2: 1}, None, "unknown"),
        ((LOST_PEER, CAUGHT + "step 5\n" * 4, ""), {0: 1, 1: -15, 2: -15}, None, "unknown"),  # it went on
        ((CAUGHT, CAUGHT, LOST_PEER), {0: 1, 1: 1, 2: 1}, None, "unknown"),
        (("", "", ""), {0: 1, 1: 1, 2: 1}, None, "unknown"),
    ],
)
def test_of_ranks_that_catch_log_and_exit_the_logs_tell_the_cause(
    tmp_path: Path, logs: Sequence[str], codes: Mapping[int, int], cause: int | None, confidence: str
) -> None:
    attempt = attempt_folder(tmp_path, 0)
    attempt.mkdir(parents=True)
    for rank, text in enumerate(logs):
        (attempt / f"rank_{rank}.stdout.log").write_text(text)
    write_stop(attempt, time.time() + 5)
    found = judgement(tmp_path, [UNDONE] * 3, codes, at=dict.fromkeys(codes, time.time() + 4))

    assert found.failure is not None
    assert (found.failure.rank, found.failure.confidence) == (cause, confidence)
    if cause is not None:
        assert found.failure.message == "rank 1: corrupt batch 17"
        assert [record.blame for record in found.ranks] == ["collateral", "cause", "collateral"]


def test_a_rank_that_has_lost_a_peer_once_it_was_asked_to_end_is_not_missing(tmp_path: Path) -> None:
    logs = [raised(LOST, at=2000.0), UNDONE, UNDONE]
    attempt = attempt_folder(tmp_path, 0)
    attempt.mkdir(parents=True)
    write_stop(attempt, 1999.0)
    found = judgement(tmp_path, logs, {0: 1, 1: -6, 2: 1}, dumps={2: WAITS}, stopped=True)

    assert found.failure is not None
    assert "rank 0 is missing" not in found.failure.message
    assert found.ranks[0].blame == "collateral"


def test_an_exception_without_a_message_is_called_by_its_type(tmp_path: Path) -> None:
    found = judgement(tmp_path, [raised("", kind="StopIteration"), UNDONE], {0: 1, 1: -15})
    assert found.failure is not None
    assert found.failure.message == "rank 0: StopIteration"
