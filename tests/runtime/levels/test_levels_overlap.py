"""Runs of several threads: beside each other where nothing says otherwise, one after the other where something does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from levels_stage import Gates, Host
from levels_stage import gates as gates
from levels_stage import host as host
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import Orchestrator, RunHandle, Tag, TaskRef, Worker

Build = Callable[[Orchestrator, Any, Any], Any]


def shared(size: int = 4) -> torch.Tensor:
    """A tensor in shared memory."""
    made: torch.Tensor = torch.zeros(size).share_memory_()  # type: ignore[no-untyped-call]
    return made


def submit_elsewhere(worker: Worker, build: Build) -> RunHandle:
    """Submit on a thread of its own, which ends."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(worker.submit, build).result(PATIENCE)


def gate_with(host: Host, gates: Gates, name: str, tensor: torch.Tensor | None = None) -> Build:
    """A graph of one task at a gate that has a tensor as well."""
    args = gates.at(name)
    if tensor is not None:
        private = not tensor.is_shared()  # type: ignore[no-untyped-call]
        args.add(tensor, Tag.INPUT if private else Tag.INOUT)
    return lambda orch, _, config: orch.submit_sub(host.gate, args)


def test_runs_of_different_threads_that_share_nothing_work_at_the_same_time(host: Host, gates: Gates) -> None:
    names = ("a", "b", "c", "d")
    handles = [submit_elsewhere(host.worker, gate_with(host, gates, name, shared())) for name in names]

    gates.wait_until_began("a", "b")  # there are two SUB workers
    assert not gates.began("c")
    gates.open("b")
    gates.wait_until_began("c")  # although the first one has not ended
    assert not handles[0].done
    gates.open()
    for handle in handles:
        handle.wait(PATIENCE)


def test_copies_of_private_memory_are_no_memory_that_runs_share(host: Host, gates: Gates) -> None:
    private = torch.zeros(4)
    handles = [submit_elsewhere(host.worker, gate_with(host, gates, name, private)) for name in ("a", "b")]

    gates.wait_until_began("a", "b")
    gates.open()
    for handle in handles:
        handle.wait(PATIENCE)


@pytest.mark.statement(9)
@pytest.mark.parametrize("shape", ["whole", "disjoint"])
def test_runs_that_share_memory_come_one_after_the_other(host: Host, gates: Gates, shape: str) -> None:
    tensor = shared()
    left, right = (tensor, tensor) if shape == "whole" else (tensor[:2], tensor[2:])
    first = submit_elsewhere(host.worker, gate_with(host, gates, "first", left))
    second = submit_elsewhere(host.worker, gate_with(host, gates, "second", right))
    third = submit_elsewhere(host.worker, gate_with(host, gates, "third"))

    gates.wait_until_began("first")
    assert gates.log() == ["first began"]  # the third one would overtake the second one
    gates.open()
    for handle in (first, second, third):
        handle.wait(PATIENCE)
    assert gates.log()[:2] == ["first began", "first ended"]


@pytest.mark.statement(31)
def test_runs_of_one_thread_come_one_after_the_other_whatever_others_do(host: Host, gates: Gates) -> None:
    host.worker.submit(gate_with(host, gates, "mine 1"))
    host.worker.submit(gate_with(host, gates, "mine 2"))
    gates.wait_until_began("mine 1")
    theirs = submit_elsewhere(host.worker, gate_with(host, gates, "theirs"))

    assert gates.log() == ["mine 1 began"]
    gates.open()
    theirs.wait(PATIENCE)
    assert gates.log()[:2] == ["mine 1 began", "mine 1 ended"]


def test_a_run_leaves_no_worker_to_later_ones_while_it_has_tasks_to_start(host: Host, gates: Gates) -> None:
    def group(orch: Orchestrator, args: Any, config: Any) -> None:
        orch.submit_sub(host.gate, gates.at("single"))
        orch.submit_sub_group(host.gate, [gates.at("left"), gates.at("right")])

    first = submit_elsewhere(host.worker, group)
    second = submit_elsewhere(host.worker, gate_with(host, gates, "later"))
    gates.wait_until_began("single")
    assert gates.log() == ["single began"]
    gates.open()
    for handle in (first, second):
        handle.wait(PATIENCE)
    assert gates.log()[:2] == ["single began", "single ended"]


def test_a_run_that_is_still_built_is_overtaken_by_none(host: Host, gates: Gates) -> None:
    refs: list[TaskRef] = []
    go_on, began = threading.Event(), threading.Event()

    def slow(orch: Orchestrator, args: Any, config: Any) -> None:
        began.set()
        go_on.wait(PATIENCE)
        refs.append(orch.submit_sub(host.gate, gates.at("slow")))

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(host.worker.submit, slow)
        began.wait(PATIENCE)
        second = threads.submit(host.worker.submit, gate_with(host, gates, "quick"))
        wait_until(lambda: len(host.worker._started.dispatcher.runs) == 2, "the second run")
        assert gates.log() == []
        go_on.set()
        gates.open()
        first.result(PATIENCE).wait(PATIENCE)
        second.result(PATIENCE).wait(PATIENCE)
