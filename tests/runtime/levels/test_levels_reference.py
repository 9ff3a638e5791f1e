"""Random graphs whose tasks raise and die, beside the same steps one after the other in plain Python."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from levels_tensor_tasks import share
from support.processes import PATIENCE

from pytest_aorta.runtime import (
    CallableHandle,
    Orchestrator,
    Outcome,
    Tag,
    TaskArgs,
    TaskError,
    TaskRef,
    Worker,
    endpoint,
)

#: Items of the memory that all tasks of a graph use.
SIZE = 12


@dataclass(frozen=True)
class Step:
    """Writes the sum of what it reads, and a number, to an interval; or fails before."""

    reads: tuple[tuple[int, int], ...]
    target: tuple[int, int]
    tag: Tag
    how: str
    scoped: bool


intervals = st.tuples(st.integers(0, SIZE - 1), st.integers(1, 5)).map(lambda at: (at[0], min(SIZE, at[0] + at[1])))
steps = st.builds(
    Step,
    reads=st.lists(intervals, max_size=2).map(tuple),
    target=intervals,
    tag=st.sampled_from([Tag.OUTPUT, Tag.INOUT]),
    how=st.sampled_from(["work"] * 6 + ["raise", "die"]),
    scoped=st.booleans(),
)


def act(args: Any) -> None:
    number, how, adds = args.config
    if how == "die":
        os._exit(9)
    if how == "raise":
        raise ValueError(number)
    *sources, target = args.tensors
    value = number + sum(int(source.sum()) for source in sources) % 1009
    target.copy_(target + value if adds else torch.full_like(target, value))


class Reference:
    """The same steps, one after the other: values, and which items nobody may read, since whose failure."""

    def __init__(self) -> None:
        self.values = [0] * SIZE
        self.broken: list[frozenset[int]] = [frozenset()] * SIZE

    def take(self, number: int, step: Step) -> frozenset[int]:
        """Carry out one step; if it fails, the steps of which one is the reason."""
        read = [*step.reads, *([step.target] if step.tag is Tag.INOUT else [])]
        reasons = frozenset[int]().union(*(reason for first, stop in read for reason in self.broken[first:stop]))
        items = range(*step.target)
        if reasons or step.how != "work":
            for item in items:
                self.broken[item] = reasons or frozenset({number})
            return reasons or frozenset({number})
        value = number + sum(sum(self.values[first:stop]) for first, stop in step.reads) % 1009
        for item in items:
            self.values[item] = value + (self.values[item] if step.tag is Tag.INOUT else 0)
            self.broken[item] = frozenset()
        return frozenset()


@pytest.fixture(scope="module")
def tools() -> Iterator[tuple[Worker, CallableHandle]]:
    """A worker and its callable, for all graphs: each death costs a new process, which registering waits for."""
    with (
        pytest.MonkeyPatch.context() as patch,
        Worker(3, num_sub_workers=2, grace=0.1, allowed_failures=None) as worker,
    ):
        patch.setattr(endpoint, "BACK_OFF", 0.0)
        yield worker, worker.register(act)


def check_graph(worker: Worker, handle: CallableHandle, graph: list[Step]) -> None:
    memory = share(torch.zeros(SIZE, dtype=torch.int64))
    reference = Reference()
    refs: list[TaskRef] = []
    origins: list[frozenset[int]] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        for number, step in enumerate(graph):
            with orch.scope() if step.scoped else contextlib.nullcontext():
                for other, earlier in zip(refs, graph, strict=False):  # a write after a read is not ordered
                    touched = [*earlier.reads, earlier.target]
                    if any(first < step.target[1] and step.target[0] < stop for first, stop in touched):
                        other.wait(PATIENCE)
                args = TaskArgs()
                for first, stop in step.reads:
                    args.add(memory[first:stop])
                args.add(memory[slice(*step.target)], step.tag)
                refs.append(orch.submit_sub(handle, args, (number, step.how, step.tag is Tag.INOUT)))
            origins.append(reference.take(number, step))

    run = worker.submit(build)
    with contextlib.suppress(TaskError):
        run.wait(PATIENCE)
    for number, (ref, step, reasons) in enumerate(zip(refs, graph, origins, strict=True)):
        record = ref.wait()
        if not reasons:
            assert record.ok, (number, record)
        elif reasons == {number} and record.outcome is not Outcome.SKIPPED:
            assert record.outcome is (Outcome.ENDPOINT_FAILURE if step.how == "die" else Outcome.TASK_FAILURE)
        else:
            assert record.outcome is Outcome.SKIPPED
            assert record.failure is not None
            assert any(record.failure.message.startswith(f"act (task {refs[at].id}) failed: ") for at in reasons)
    whole = [item for item in range(SIZE) if not reference.broken[item]]
    assert [int(memory[item]) for item in whole] == [reference.values[item] for item in whole]
    assert worker.unfinished == 0


def _test(examples: int) -> Any:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(steps, min_size=2, max_size=12))
    def test(tools: tuple[Worker, CallableHandle], graph: list[Step]) -> None:
        check_graph(*tools, graph)

    return test


test_values_are_those_of_the_steps_one_after_the_other_or_the_failure_is_the_producers = _test(25)
test_two_thousand_graphs = pytest.mark.slow(pytest.mark.long(_test(2000)))
