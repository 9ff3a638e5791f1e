"""What a worker with ``check=True`` warns of, and the trace of a run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import levels_tensor_tasks
import pytest
import torch
from levels_stage import Gates
from levels_stage import gates as gates
from levels_tensor_tasks import share

from pytest_aorta.runtime import HazardWarning, Orchestrator, Tag, TaskArgs, TaskError, Worker


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(3, num_sub_workers=2, grace=0.1, check=True) as worker:
        yield worker


def fill(args: Any) -> None:
    args.tensors[0].fill_(args.scalars[0])


def test_writes_that_nothing_orders_are_warned_of(worker: Worker, gates: Gates) -> None:
    write, total = worker.register(levels_tensor_tasks.fill_at_gate), worker.register(levels_tensor_tasks.total)
    set_all = worker.register(fill)
    v, x, y, z = (share(torch.zeros(8)) for _ in range(4))

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        def written(tensor: torch.Tensor, tag: Tag, *after: Any) -> Any:
            args = TaskArgs().add_scalar(2).add(tensor, tag)
            return orch.submit_sub(set_all, args, after=after)

        first = TaskArgs().add(x, Tag.OUTPUT).add_scalar(1).add_scalar(str(gates.folder)).add_scalar("a")
        orch.submit_sub(write, first)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader = orch.submit_sub(total, TaskArgs().add(x[:4]))
            written(x[4:], Tag.INOUT)
            written(x[:4], Tag.INOUT, reader)
            written(y, Tag.OUTPUT)
            orch.submit_sub(total, TaskArgs().add(z, Tag.NO_DEP), after=[reader])
            written(z, Tag.OUTPUT)
            orch.submit_sub(total, TaskArgs().add(v), after=[reader])
        with pytest.warns(HazardWarning, match=r"fill \(task \d+\) writes bytes that total \(task \d+\) re") as found:
            written(v[:2], Tag.OUTPUT)
        assert found[0].filename == __file__
        gates.open()

    worker.run(build)
    for handle in (write, total, set_all):
        worker.unregister(handle)


def test_a_write_through_an_input_is_warned_of(worker: Worker) -> None:
    set_all = worker.register(fill)
    x = share(torch.zeros(8))

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        nothing = orch.submit_sub(set_all, TaskArgs().add(x).add_scalar(0))
        orch.submit_sub(set_all, TaskArgs().add(x[2:]).add_scalar(5), after=[nothing])

    handle = worker.submit(build)
    with pytest.warns(HazardWarning, match=r"tensor 0 of fill \(task \d+\), an INPUT, has changed") as found:
        handle.wait()
    assert len(found) == 1
    worker.unregister(set_all)


def test_a_trace_shows_when_and_where_each_task_ran(worker: Worker, tmp_path: Path) -> None:
    boom, total = worker.register(levels_tensor_tasks.fill_half_and_boom), worker.register(levels_tensor_tasks.total)
    x = share(torch.zeros(2))

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        both = orch.submit_sub_group(total, [TaskArgs().add(x), None])
        orch.submit_sub(boom, TaskArgs().add(x, Tag.INOUT), after=[both])
        orch.submit_sub(total, TaskArgs().add(x))  # never starts

    handle = worker.submit(build)
    with pytest.raises(TaskError):
        handle.wait()
    handle.trace(tmp_path / "run.json")

    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    ran = [(event["name"], rows[event["tid"]], event["args"]["outcome"]) for event in events if event["ph"] == "X"]
    assert sorted(rows.values()) == ["sub_worker 0", "sub_worker 1"]
    assert [(name, outcome) for name, _, outcome in ran] == [
        ("total", "success"),
        ("total", "success"),
        ("fill_half_and_boom", "task_failure"),
    ]
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["args"]["waited_ms"] >= 0
    worker.unregister(boom)
    worker.unregister(total)
