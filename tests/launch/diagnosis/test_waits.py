"""Chains and rings of ranks that wait for each other, by the calls in which they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.launch.diagnosis.collectives import find_mismatch, find_rejecting
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, AttemptEvidence, Collective, RankEvidence, RankExit, Wait
from pytest_aorta.launch.diagnosis.judge import judge, with_earlier
from pytest_aorta.launch.diagnosis.waits import WaitGraph
from pytest_aorta.trials.records import Attempt, Event, Failure, RankRecord

WORLD = 4


def recv(peer: int) -> Wait:
    return Wait("recv", [peer], list(range(WORLD)))


def send(peer: int) -> Wait:
    return Wait("send", [peer], list(range(WORLD)))


def collective(rank: int, *members: int, call: str = "all_reduce") -> Wait:
    members = members or tuple(range(WORLD))
    return Wait(call, [each for each in members if each != rank], list(members))


def test_who_is_waited_for_and_what_is_said() -> None:
    cases: list[tuple[dict[int, Wait], int | None, str]] = [
        (
            {1: recv(0), 2: recv(1), 3: recv(2)},
            0,
            "rank 3 waits in recv for rank 2, which waits in recv for rank 1, which waits in recv for rank 0",
        ),
        ({0: collective(0), 1: collective(1), 3: collective(3)}, 2, "rank 0 waits in all_reduce for rank 2"),
        # All have met, or do what the other waits for.
        ({rank: collective(rank) for rank in range(WORLD)}, None, ""),
        ({0: send(1), 1: recv(0)}, None, ""),
        # Two ends: nobody is the one.
        ({0: recv(2), 1: recv(3)}, None, "rank 0 waits in recv for rank 2"),
        # Rings: a pipeline that has lost a message, and two groups in two orders.
        (
            {0: collective(0, call="barrier"), 1: collective(1, call="barrier"), 2: recv(1), 3: recv(2)},
            None,
            "rank 1 waits in barrier for rank 2, which waits in recv for rank 1",
        ),
        (
            {0: collective(0, 0, 1), 1: collective(1, 1, 3), 3: collective(3, 3, 2), 2: collective(2, 2, 0)},
            None,
            "rank 0 waits in all_reduce of ranks 0-1 for rank 1, which waits in all_reduce of ranks 1,3 for rank 3, "
            "which waits in all_reduce of ranks 2-3 for rank 2, which waits in all_reduce of ranks 0,2 for rank 0",
        ),
        ({0: send(1), 1: send(0)}, None, "rank 0 waits in send for rank 1, which waits in send for rank 0"),
    ]
    for waits, awaited, text in cases:
        graph = WaitGraph.of(waits, {})

        assert (graph.awaited(), graph.text()) == (awaited, text)


def test_of_equal_groups_the_recorder_tells_which_one_a_rank_is_in() -> None:
    waits = {rank: collective(rank, 0, 1, 2) for rank in range(3)}
    last = {rank: Collective("gloo:all_reduce", 4, "metrics" if rank == 1 else "default_pg") for rank in range(3)}

    graph = WaitGraph.of(waits, last)

    assert graph.ring() == [0, 1]
    assert graph.odd(world_size=3) == 1
    assert graph.odd(world_size=4) is None  # of the fourth, nothing is known
    assert WaitGraph.of(waits, {}).edges == {}


def test_a_rank_is_not_odd_whose_group_is_not_that_of_all_the_others() -> None:
    waits = {0: collective(0, 0, 1, 2), 1: collective(1, 0, 1), 2: collective(2, 0, 1, 2)}

    assert WaitGraph.of(waits, {}).ring() == [0, 1]  # rank 1 reverses two calls, or rank 0 leaves one out
    assert WaitGraph.of(waits, {}).odd(world_size=3) is None


@given(st.dictionaries(st.integers(0, 5), st.integers(0, 5)))
def test_a_ring_is_one_and_what_is_awaited_waits_for_nobody(peers: dict[int, int]) -> None:
    waits = {rank: recv(peer) for rank, peer in peers.items() if rank != peer}
    graph = WaitGraph.of(waits, {})

    ring, awaited = graph.ring(), graph.awaited()

    assert all(after in graph.edges[rank] for rank, after in zip(ring, [*ring[1:], *ring[:1]], strict=True))
    assert not (ring and awaited is not None)
    assert awaited is None or awaited not in waits
    has_ring = False
    for start in waits:  # each rank waits for one: following that leads into a ring, or to an end
        seen, at = set(), start
        while at in waits and at not in seen:
            seen.add(at)
            at = peers[at]
        has_ring |= at in seen
    assert bool(ring) is has_ring


SUM = Collective("gloo:all_reduce", 4, "default_pg", "Float[8]")


def test_a_rank_that_got_more_than_it_expected_is_odd_where_most_others_have_entered_the_same() -> None:
    found = find_rejecting({0: [SUM], 1: [], 2: [SUM]}, {1: (64, 48)}, 3)

    assert found is not None
    assert found.odd == 1
    assert found.text == (
        "collective 4 differs: rank 1: 64 bytes came where it expected 48; ranks 0,2: gloo:all_reduce of Float[8]"
    )


def test_else_it_may_be_the_victim() -> None:
    cases: list[tuple[dict[int, list[Collective]], dict[int, tuple[int, int]], int]] = [
        ({0: [SUM]}, {1: (64, 48)}, 2),  # either of the two may be wrong
        ({0: [SUM], 2: [SUM]}, {1: (64, 48)}, 5),  # the rest is not known
        ({0: [SUM], 3: [SUM]}, {1: (64, 48), 2: (64, 48)}, 4),
        ({0: [SUM], 2: [Collective("gloo:all_reduce", 4, "default_pg", "Float[4]")]}, {1: (64, 48)}, 3),
        ({0: [SUM], 2: [Collective("gloo:all_reduce", 3, "default_pg", "Float[8]")]}, {1: (64, 48)}, 3),
        # Each rank sends another number to each.
        ({rank: [Collective("gloo:all_to_all", 4, "default_pg")] for rank in (0, 2)}, {1: (64, 48)}, 3),
    ]
    for others, rejecting, world_size in cases:
        assert find_rejecting(others, rejecting, world_size) is None


TIMED_OUT = "[../unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"


def timed_out(rank: int, wait: Wait | None, at: float) -> RankEvidence:
    """A rank that gave up to wait, and has ended by that."""
    failure = Failure("run", "exception", TIMED_OUT, "RuntimeError", at=at)
    events: list[Event] = [
        {"type": "begin", "phase": "run"},
        {"type": "end", "phase": "run", "sec": 1.0, "failure": failure, "at": at},
    ]
    return RankEvidence(
        rank, rank, "here", started=True, exit=RankExit(1, 100 + rank, at, stopped=False), events=events, wait=wait
    )


def test_the_rank_at_the_end_of_all_chains_is_the_cause() -> None:
    sleeper = RankEvidence(
        0,
        0,
        "here",
        started=True,
        exit=RankExit(-15, 100, 9.0, stopped=True),
        events=[{"type": "begin", "phase": "run"}],
    )
    ranks = [sleeper, timed_out(1, recv(0), 8.0), timed_out(2, recv(1), 8.1)]

    found = judge(AttemptEvidence("torchrun", 0, 3, ranks=ranks, stopped_at=8.2))

    assert found.failure is not None
    assert found.failure.rank == 0
    assert found.failure.message.startswith("rank 0 is missing: ")
    assert "; rank 2 waits in recv for rank 1, which waits in recv for rank 0; rank 1: " in found.failure.message
    assert [rank.blame for rank in found.ranks] == ["cause", "collateral", "collateral"]


def test_of_a_ring_no_rank_is_the_cause() -> None:
    ranks = [timed_out(0, collective(0, 0, 1, 2), 8.0), timed_out(1, recv(0), 8.1), timed_out(2, recv(1), 8.1)]

    found = judge(AttemptEvidence("torchrun", 0, 3, ranks=ranks, agent=AgentEnd("torchrun", 1)))

    assert found.failure is not None
    assert (found.failure.rank, found.failure.confidence) == (None, "unknown")
    assert "rank 0 waits in all_reduce of ranks 0-2 for rank 1, which waits in recv for rank 0" in found.failure.message
    assert {rank.blame for rank in found.ranks} == {"unknown"}


EXIT = Failure("run", "exit_code", "rank 1: ended itself with exit code 13", exit_code=13, rank=1, confidence="certain")


def test_ranks_that_are_started_again_and_only_lose_peers_have_failed_as_those_before() -> None:
    ranks = [timed_out(rank, None, 8.0) for rank in range(2)]
    found = judge(AttemptEvidence("script", 1, 2, ranks=ranks))
    assert found.failure is not None
    assert found.failure.rank is None

    cause = with_earlier(found, [Attempt(0, failure=EXIT)]).failure

    assert cause is not None
    assert (cause.rank, cause.exit_code, cause.confidence) == (1, 13, "likely")
    assert cause.message.startswith("rank 1: ended itself with exit code 13; the ranks that were started after that: ")
    assert with_earlier(found, []) == found
    assert with_earlier(found, [Attempt(0, reason="membership")]) == found


def test_a_failure_of_its_own_counts_in_the_last_attempt() -> None:
    ranks = [RankRecord(rank, failure=Failure("run", "exit_code", "exit code 3", exit_code=3)) for rank in range(2)]
    own = judge(AttemptEvidence("script", 1, 2, ranks=[timed_out(rank, None, 8.0) for rank in range(2)]))
    found = type(own)(ranks, own.failure)

    assert with_earlier(found, [Attempt(0, failure=EXIT)]) == found


def raised_on(host: str, rank: int, message: str, at: float) -> RankEvidence:
    failure = Failure("run", "exception", message, "ValueError", at=at)
    events: list[Event] = [
        {"type": "begin", "phase": "run"},
        {"type": "end", "phase": "run", "sec": 1.0, "failure": failure, "at": at},
    ]
    return RankEvidence(rank, rank, host, started=True, exit=RankExit(1, 100 + rank, at, stopped=False), events=events)


@pytest.mark.parametrize(("host", "named"), [("a", 0), ("b", None)])
def test_times_of_two_hosts_say_nothing_of_what_came_first(host: str, named: int | None) -> None:
    ranks = [raised_on("a", 0, "corrupt batch", 10.0), raised_on(host, 1, "queue is closed", 15.0)]

    found = judge(AttemptEvidence("elastic", 0, 2, ranks=ranks))

    assert found.failure is not None
    assert found.failure.rank == named
    if named is None:
        assert found.failure.evidence == "ranks 0-1 failed on hosts whose clocks may differ"


def exited(rank: int, entered: int, code: int = 1, *, stopped: bool = False) -> RankEvidence:
    """A rank of a script that has ended without a word after so many collectives."""
    failure = Failure("run", "exit_code", f"ended itself with exit code {code}", exit_code=code, at=10.0)
    events: list[Event] = [
        {"type": "begin", "phase": "run"},
        {"type": "end", "phase": "run", "sec": 1.0, "failure": failure, "at": 10.0},
    ]
    own = [Collective("gloo:all_reduce", number, "default_pg") for number in range(1, entered + 1)]
    end = RankExit(-15 if stopped else code, 100 + rank, 10.0, stopped=stopped)
    return RankEvidence(
        rank, rank, "here", started=True, exit=end, events=events[:1] if stopped else events, collectives=own
    )


def test_a_rank_that_ends_in_a_collective_that_another_has_not_entered_is_a_victim() -> None:
    ranks = [exited(0, 4), exited(1, 3, stopped=True), exited(2, 4, stopped=True)]

    found = judge(AttemptEvidence("script", 0, 3, ranks=ranks, stopped_at=10.1))

    assert found.failure is not None
    assert (found.failure.rank, found.failure.confidence) == (1, "likely")
    assert [rank.blame for rank in found.ranks] == ["collateral", "cause", "collateral"]


def test_a_rank_that_ends_before_the_others_have_met_is_the_cause() -> None:
    ranks = [exited(0, 4, stopped=True), exited(1, 3, 13), exited(2, 4, stopped=True)]

    found = judge(AttemptEvidence("script", 0, 3, ranks=ranks, stopped_at=10.1))

    assert found.failure is not None
    assert (found.failure.rank, found.failure.exit_code) == (1, 13)


DOUBLE, FLOAT = (Collective("gloo:all_reduce", 4, "default_pg", of=of) for of in ("Double[64]", "Float[64]"))


def test_of_two_sizes_a_rank_that_got_too_much_has_entered_the_smaller() -> None:
    cases: list[tuple[dict[int, list[Collective]], dict[int, tuple[int, int]], int | None]] = [
        ({0: [DOUBLE], 1: [FLOAT]}, {2: (88, 44)}, 0),
        ({0: [FLOAT], 1: [DOUBLE]}, {2: (88, 44)}, 1),
        ({0: [DOUBLE], 1: [FLOAT]}, {2: (132, 44)}, None),  # of neither
        ({0: [DOUBLE], 1: [FLOAT]}, {}, None),
        ({0: [DOUBLE], 1: [FLOAT], 3: [FLOAT]}, {2: (88, 44)}, 0),
    ]
    for entered, rejecting, odd in cases:
        found = find_mismatch(entered, max([*entered, 2]) + 1, rejecting)
        assert found is not None
        assert found.odd == odd
        said = "; rank 2: 88 bytes came where it expected 44"
        assert found.text.endswith(said) == (odd is not None)
