"""Groups: their members start together, and one that fails takes the others with it, after a grace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import levels_tasks
import pytest
from levels_doubles import MakeBench
from levels_doubles import bench_of as bench_of
from levels_stage import Gates, Host, run_next
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import Orchestrator, Outcome, TaskError, TaskRef, Worker
from pytest_aorta.runtime.graph import State


class Gang(Host):
    """A worker with two slots, whose groups have a member that goes wrong and one that does not."""

    def __init__(self, worker: Worker, gates: Gates) -> None:
        super().__init__(worker)
        self.gates = gates

    def start(self, wrong: str, other: str = "gate", timeout: float | None = None) -> TaskRef:
        """A group whose member on slot 0 does ``wrong``, and the one on slot 1 does ``other``."""
        refs: list[TaskRef] = []
        args = [self.gates.at(wrong).add_scalar(wrong), self.gates.at(other).add_scalar(other)]
        self.worker.submit(
            lambda orch, _, config: refs.append(
                orch.submit_next_level_group(self.either, args, workers=[0, 1], timeout=timeout)
            )
        )
        return refs[0]


@pytest.fixture
def patient(gates: Gates) -> Iterator[Gang]:
    """Peers have all the time that they need."""
    with Worker(3, device_ids=[0, 1], grace=600) as worker:
        yield Gang(worker, gates)


@pytest.fixture
def strict(gates: Gates) -> Iterator[Gang]:
    """Peers have no time to speak of."""
    with Worker(3, device_ids=[0, 1], grace=0.05) as worker:
        yield Gang(worker, gates)


@pytest.mark.statement(21)
def test_a_group_stays_running_while_peers_of_a_failed_member_end(patient: Gang) -> None:
    ref = patient.start("gate_then_boom")
    patient.gates.wait_until_began("gate_then_boom", "gate")
    patient.gates.open("gate_then_boom")
    wait_until(lambda: ref._node.payload.failure is not None, "the failure of a member")

    assert ref.state is State.RUNNING
    assert ref.record is None
    patient.gates.open("gate")
    record = ref.wait(PATIENCE)

    assert record.outcome is Outcome.TASK_FAILURE
    assert record.failure is not None
    assert record.failure.message == "slot 0: ValueError: gate_then_boom"
    assert [member.outcome for member in record.members] == [Outcome.TASK_FAILURE, Outcome.SUCCESS]
    assert record.members[1].payload == "gate"
    assert record.ended == max(member.ended or 0.0 for member in record.members)


@pytest.mark.statement(21)
def test_peers_that_do_not_end_within_the_grace_are_ended(strict: Gang) -> None:
    ref = strict.start("gate_then_boom")
    strict.gates.wait_until_began("gate_then_boom", "gate")
    strict.gates.open("gate_then_boom")  # the other one would wait for ever
    record = ref.wait(PATIENCE)

    assert record.outcome is Outcome.TASK_FAILURE
    assert [member.outcome for member in record.members] == [Outcome.TASK_FAILURE, Outcome.CANCELLED]
    assert record.members[1].failure is not None
    assert record.members[1].failure.message == "a member of its group failed 0.05 s ago"
    assert [run_next(strict.worker, strict.own_pid, worker=worker).ok for worker in (0, 1)] == [True, True]


@pytest.mark.statement(21)
@pytest.mark.statement(38)
def test_a_member_that_dies_is_the_failure_of_its_group_and_the_end_of_its_peers(strict: Gang) -> None:
    ref = strict.start("gate_then_die", "gate_against_sigterm")
    strict.gates.wait_until_began("gate_then_die", "gate_against_sigterm")
    strict.gates.open("gate_then_die")
    record = ref.wait(PATIENCE)

    assert record.outcome is Outcome.ENDPOINT_FAILURE
    assert record.failure is not None
    assert record.failure.type == "ProcessDied"
    assert record.failure.message == "slot 0: its process died with signal SIGKILL"
    assert [member.outcome for member in record.members] == [Outcome.ENDPOINT_FAILURE, Outcome.CANCELLED]
    assert "gate_against_sigterm ended" not in strict.gates.log()
    assert [run_next(strict.worker, strict.own_pid, worker=worker).ok for worker in (0, 1)] == [True, True]


def test_each_member_has_the_deadline_of_the_group(strict: Gang) -> None:
    ref = strict.start("gate", "gate_against_sigterm", timeout=0.2)
    record = ref.wait(PATIENCE)

    assert record.outcome is Outcome.TIMEOUT
    assert record.failure is not None
    assert record.failure.type == "TimeoutError"
    assert "TimeoutError: not finished within 0.2 s" in record.failure.message
    assert {member.outcome for member in record.members} <= {Outcome.TIMEOUT, Outcome.CANCELLED}


def test_a_sub_group_runs_at_the_same_time_and_fails_as_one(gates: Gates) -> None:
    with Worker(3, num_sub_workers=2, grace=0.05) as worker:
        boom, gate = worker.register(levels_tasks.gate_then_boom), worker.register(levels_tasks.gate)
        refs: list[TaskRef] = []

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            refs.append(orch.submit_sub_group(boom, [gates.at("a"), gates.at("b")]))
            refs.append(orch.submit_sub_group(gate, [gates.at("c"), gates.at("d")], after=[refs[0]]))

        handle = worker.submit(build)
        gates.wait_until_began("a", "b")
        gates.open("a")
        with pytest.raises(TaskError, match="ValueError: a"):
            handle.wait()

        assert not gates.began("c")
        skipped = handle.records[1]
        assert skipped.outcome is Outcome.SKIPPED
        assert [member.outcome for member in skipped.members] == [Outcome.SKIPPED] * 2


@pytest.mark.statement(21)
def test_only_members_that_still_run_are_asked_to_end_and_only_once(bench_of: MakeBench) -> None:
    office = bench_of(nexts=3, grace=0.0)
    ref = office.group("group", [0, 1, 2])
    office.end(office.next[0])
    office.end(office.next[1], Outcome.TASK_FAILURE, "first")
    wait_until(lambda: office.next[2].stopped, "the order to end")
    ref.cancel("again")

    assert [len(endpoint.stopped) for endpoint in office.next] == [0, 0, 1]
    office.end(office.next[2])  # it was quicker than the order
    assert [member.outcome for member in ref.wait(0).members] == [
        Outcome.SUCCESS,
        Outcome.TASK_FAILURE,
        Outcome.SUCCESS,
    ]
