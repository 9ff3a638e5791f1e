"""How long ranks compute between collectives, whoever waits for whom there."""

from __future__ import annotations

import random

import pytest

from pytest_aorta.launch.diagnosis.collectives import busy_ms
from pytest_aorta.launch.diagnosis.evidence import AttemptEvidence, Collective, RankEvidence
from pytest_aorta.launch.diagnosis.judge import judge
from pytest_aorta.trials.records import Event

MS = 1_000_000


def synchronous(computes_ms: list[float], collectives: int = 20, group: str = "0") -> dict[int, list[Collective]]:
    """Ranks that compute for so long, and then wait for each other."""
    entered: dict[int, list[Collective]] = {rank: [] for rank in range(len(computes_ms))}
    begin = 0.0
    for number in range(1, collectives + 1):
        times = [begin + each * MS for each in computes_ms]
        for rank, at in enumerate(times):
            entered[rank].append(Collective("gloo:all_reduce", number, group, at=int(at)))
        begin = max(times)
    return entered


def test_what_a_rank_computes_is_told_from_what_it_waits() -> None:
    assert busy_ms(synchronous([100, 120, 100, 90])) == pytest.approx({0: 100, 1: 120, 2: 100, 3: 90})


def test_groups_of_some_ranks_do_not_count() -> None:
    entered = synchronous([100, 120, 100])
    for rank, entries in synchronous([5, 1], collectives=60, group="1").items():
        entered[rank] += entries

    assert busy_ms(entered) == pytest.approx({0: 100, 1: 120, 2: 100})


def test_too_little_says_nothing() -> None:
    cases: list[dict[int, list[Collective]]] = [
        {},
        synchronous([100]),
        synchronous([100, 120], collectives=9),
        {**synchronous([100, 120]), 2: []},  # a rank that says nothing
    ]
    for entered in cases:
        assert busy_ms(entered) == {}


def evidence(hosts: list[str]) -> AttemptEvidence:
    entered = synchronous([random.Random(3).uniform(90, 110) for _ in hosts])
    done: list[Event] = [
        {"type": "begin", "phase": "run"},
        {"type": "progress", "step": 10, "total": None},
        {"type": "end", "phase": "run", "sec": 1.0, "result": None},
    ]
    ranks = [
        RankEvidence(rank, rank, host, started=True, events=list(done), collectives=entered[rank])
        for rank, host in enumerate(hosts)
    ]
    return AttemptEvidence("torchrun", 0, len(hosts), ranks=ranks)


def test_steps_are_as_many_collectives_as_there_were_for_each() -> None:
    first, _ = judge(evidence(["a", "a"])).ranks

    assert first.busy_ms is not None
    assert first.step_ms == pytest.approx(2 * first.busy_ms)  # twenty collectives in ten steps


def test_clocks_of_hosts_are_not_compared() -> None:
    assert [rank.busy_ms for rank in judge(evidence(["a", "b"])).ranks] == [None, None]
