"""Groups: their members start together, and one that fails takes the others with it, after a grace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from levels_stage import Gates, Host, failure_of, run_next
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import Orchestrator, Outcome, TaskRef, Worker
from pytest_aorta.runtime.graph import State


class Gang(Host):
    """A worker with two slots, whose groups have a member that goes wrong and one that does not."""

    def __init__(self, worker: Worker, gates: Gates) -> None:
        super().__init__(worker)
        self.gates = gates

    def start(self, wrong: str, other: str = "gate") -> TaskRef:
        """A group whose member on slot 0 does ``wrong``, and the one on slot 1 does ``other``."""
        refs: list[TaskRef] = []
        args = [self.gates.at(wrong).add_scalar(wrong), self.gates.at(other).add_scalar(other)]
        self.worker.submit(
            lambda orch, _, config: refs.append(orch.submit_next_level_group(self.either, args, workers=[0, 1]))
        )
        return refs[0]


@pytest.fixture
def strict(gates: Gates) -> Iterator[Gang]:
    """Peers have no time to speak of."""
    with Worker(3, device_ids=[0, 1], grace=0.05) as worker:
        yield Gang(worker, gates)


@pytest.mark.statement(21)
def test_a_group_stays_running_while_peers_of_a_failed_member_end(gates: Gates) -> None:
    with Worker(3, device_ids=[0, 1], grace=600) as worker:
        patient = Gang(worker, gates)
        ref = patient.start("gate_then_boom")
        gates.wait_until_began("gate_then_boom", "gate")
        gates.open("gate_then_boom")
        wait_until(lambda: ref._node.payload.failure is not None, "the failure of a member")

        assert ref.state is State.RUNNING
        assert ref.record is None
        gates.open("gate")
        record = ref.wait(PATIENCE)

    assert failure_of(record) == (Outcome.TASK_FAILURE, "ValueError", "slot 0: ValueError: gate_then_boom")
    assert [member.outcome for member in record.members] == [Outcome.TASK_FAILURE, Outcome.SUCCESS]
    assert record.members[1].payload == "gate"
    assert record.ended == max(member.ended or 0.0 for member in record.members)


@pytest.mark.statement(21)
@pytest.mark.statement(38)
@pytest.mark.parametrize(
    ("wrong", "other", "outcome", "message"),
    [
        ("gate_then_boom", "gate", Outcome.TASK_FAILURE, "ValueError: gate_then_boom"),
        ("gate_then_die", "gate_against_sigterm", Outcome.ENDPOINT_FAILURE, "its process died with signal SIGKILL"),
    ],
)
def test_peers_that_do_not_end_within_the_grace_are_ended(
    strict: Gang, wrong: str, other: str, outcome: Outcome, message: str
) -> None:
    ref = strict.start(wrong, other)
    strict.gates.wait_until_began(wrong, other)
    strict.gates.open(wrong)  # the other one would wait for ever
    record = ref.wait(PATIENCE)

    assert failure_of(record)[2] == f"slot 0: {message}"
    assert [it.outcome for it in (record, *record.members)] == [outcome, outcome, Outcome.CANCELLED]
    assert failure_of(record.members[1])[2] == "a member of its group failed 0.05 s ago"
    assert f"{other} ended" not in strict.gates.log()
    assert [run_next(strict.worker, strict.own_pid, worker=worker).ok for worker in (0, 1)] == [True, True]


def test_each_member_has_the_deadline_of_the_group_and_a_consumer_no_member_that_runs(strict: Gang) -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        args = [strict.gates.at("a"), strict.gates.at("b")]
        refs.append(orch.submit_next_level_group(strict.gate_against_sigterm, args, workers=[0, 1], timeout=0.2))
        refs.append(orch.submit_next_level_group(strict.gate, args, workers=[0, 1], after=refs))

    strict.worker.submit(build)
    record, skipped = (ref.wait(PATIENCE) for ref in refs)

    outcome, kind, message = failure_of(record)
    assert (outcome, kind) == (Outcome.TIMEOUT, "TimeoutError")
    assert "TimeoutError: not finished within 0.2 s" in message
    assert {member.outcome for member in record.members} <= {Outcome.TIMEOUT, Outcome.CANCELLED}
    assert [one.outcome for one in (skipped, *skipped.members)] == [Outcome.SKIPPED] * 3
