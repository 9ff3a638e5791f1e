"""Callbacks of tasks: on a thread of their own, where they may do what they like."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from levels_stage import Gates, Host, run_one, scalars
from levels_stage import gates as gates
from levels_stage import host as host
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import Orchestrator, Outcome, RunHandle, TaskError, TaskRecord, TaskRef, Worker


def submit_gate(host: Host, gates: Gates, *callbacks: Any) -> tuple[RunHandle, TaskRef]:
    """A run of one task at a gate, with callbacks."""
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.append(orch.submit_sub(host.gate, gates.at("a")))
        for callback in callbacks:
            refs[0].when_settled(callback)

    return host.worker.submit(build), refs[0]


def test_a_callback_that_raises_is_an_error_of_its_run_and_of_nothing_else(
    host: Host, gates: Gates, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def angry(record: TaskRecord) -> None:
        calls.append("angry")
        raise LookupError("call back")

    handle, ref = submit_gate(host, gates, angry, lambda record: calls.append("calm"))
    gates.open()

    for _ in range(2):
        with pytest.raises(TaskError, match=r"when_settled of task \d+ \(gate\): LookupError: call back") as caught:
            handle.wait(PATIENCE)
    assert caught.value.record.failure is not None
    assert "in angry" in caught.value.record.failure.traceback
    assert calls == ["angry", "calm"]
    assert ref.record is not None
    assert ref.record.ok
    assert capsys.readouterr().err == ""
    assert run_one(lambda orch: orch.submit_sub(host.echo, scalars(1)), host.worker).ok


def test_a_callback_may_block_and_delays_no_wait_of_others(host: Host, gates: Gates) -> None:
    let_go = threading.Event()
    handle, ref = submit_gate(host, gates, lambda record: let_go.wait(PATIENCE))
    gates.open()

    assert ref.wait(PATIENCE).ok
    assert run_one(lambda orch: orch.submit_sub(host.echo, scalars(1)), host.worker).ok
    with pytest.raises(TimeoutError, match="callbacks of its tasks have not returned within"):
        handle.wait(0.01)
    assert not let_go.is_set()
    let_go.set()
    handle.wait(PATIENCE)


def test_a_callback_may_submit_and_wait_even_for_its_own_run(host: Host, gates: Gates) -> None:
    seen: list[Any] = []

    def again(record: TaskRecord) -> None:
        started.wait(PATIENCE)
        run.wait(PATIENCE)
        seen.append(run_one(lambda orch: orch.submit_sub(host.echo, scalars("again")), host.worker).payload)

    started = threading.Event()
    run, _ = submit_gate(host, gates, again)
    started.set()
    gates.open()
    run.wait(PATIENCE)

    assert seen == [{"scalars": ["again"], "config": None}]


def test_callbacks_that_were_promised_are_made_before_a_worker_has_closed(gates: Gates) -> None:
    gates.open()
    seen: list[TaskRecord] = []
    with Worker(3, num_sub_workers=1) as worker:
        own = Host(worker)
        handle, ref = submit_gate(own, gates, seen.append)
    assert [record.outcome for record in seen] == [Outcome.SUCCESS]

    ref.when_settled(seen.append)
    wait_until(lambda: len(seen) == 2, "the call back after the end")
    handle.wait(PATIENCE)
