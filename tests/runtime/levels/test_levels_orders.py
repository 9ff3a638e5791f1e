"""Replayed orders: values that depend on the order name the tasks, the tensor and the missing tag."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import levels_tensor_tasks
import pytest
import torch
from levels_stage import Host
from levels_tensor_tasks import share

from pytest_aorta.runtime import HazardWarning, Orchestrator, Tag, TaskArgs, Worker


def replayed(build: Callable[[Host], Callable[..., Any]], orders: int = 6) -> tuple[list[str], Worker]:
    """What was found, and the worker that has found it."""
    with Worker(3, num_sub_workers=2, replay_orders=orders, grace=0.1) as worker:
        host = Host(worker, levels_tensor_tasks)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", HazardWarning)
            worker.run(build(host))
    found = [str(warning.message) for warning in caught if warning.category is HazardWarning]
    assert found == worker.differences
    return found, worker


def pipeline(host: Host, tensor: torch.Tensor, *tags: Tag) -> Callable[..., Any]:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for value, tag in zip((1, 2), tags, strict=False):
            orch.submit_sub(host.fill, TaskArgs().add(tensor, tag).add_scalar(value))
        orch.submit_sub(host.total, TaskArgs().add(tensor, tags[-1]))

    return build


def test_a_graph_whose_tags_say_all_gives_the_same_values_in_every_order() -> None:
    tensor = share(torch.full((3,), 5.0))
    found, worker = replayed(lambda host: pipeline(host, tensor, Tag.INOUT, Tag.INOUT, Tag.INPUT))
    assert found == []
    assert [order.started for order in worker.orders] == [[0, 1, 2]] * 6
    assert tensor.tolist() == [2, 2, 2]
    hashes = [task.outputs() for task in worker.orders[0].tasks]
    assert set(hashes[0]) == {"tensor 0", "result"}
    assert hashes[0]["tensor 0"] != hashes[1]["tensor 0"]


@pytest.mark.parametrize(
    ("tags", "what"),
    [
        (
            (Tag.OUTPUT, Tag.OUTPUT, Tag.INPUT),
            r"fill \(task 0\) writes .* fill \(task 1\) writes .*; tag tensor 0 of fill",
        ),
        ((Tag.INOUT, Tag.INOUT, Tag.NO_DEP), r"fill \(task \d\) writes .* total \(task 2\) reads .* INPUT"),
    ],
)
def test_a_missing_tag_is_named_with_the_tasks_and_the_tensor(tags: tuple[Tag, ...], what: str) -> None:
    tensor = share(torch.full((3,), 5.0))
    found, _ = replayed(lambda host: pipeline(host, tensor, *tags))
    assert found
    assert all(re.search(what, text) for text in found), found
    assert tensor.tolist() == [2, 2, 2]  # as the tasks were submitted


@pytest.mark.slow
def test_a_write_that_is_declared_as_a_read_and_a_write_after_a_read_are_named() -> None:
    a, b = share(torch.zeros(2)), share(torch.zeros(2))

    def undeclared(host: Host) -> Callable[..., Any]:
        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            orch.submit_sub(host.increment, TaskArgs().add(a))  # writes its INPUT
            orch.submit_sub(host.total, TaskArgs().add(a))

        return build

    def overwritten(host: Host) -> Callable[..., Any]:
        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            orch.submit_sub(host.total, TaskArgs().add(b))
            orch.submit_sub(host.fill, TaskArgs().add(b, Tag.INOUT).add_scalar(1))

        return build

    found, _ = replayed(undeclared)
    assert found
    assert all("; tag tensor 0 of increment (task 0) INOUT: it writes it" in text for text in found), found
    found, _ = replayed(overwritten)
    assert found
    assert all("total (task 0) reads tensor 0 (INPUT), fill (task 1) writes" in text for text in found), found
    assert all("tag both tensors INOUT, or give fill (task 1) after=[total]" in text for text in found), found


def test_a_graph_that_waits_and_allocates_is_replayed_as_well() -> None:
    def make(host: Host) -> Callable[..., Any]:
        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            for step in range(3):
                with orch.scope():
                    made = orch.submit_sub(host.fill, TaskArgs().add_output([4]).add_scalar(step))
                    assert orch.submit_sub(host.total, TaskArgs().add(made.outputs[0])).wait().payload == 4 * step

        return build

    assert replayed(make)[0] == []
