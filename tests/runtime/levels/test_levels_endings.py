"""Ends: in order, after exceptions and interrupts, and when a process is killed, forked, or forgets its worker."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import levels_tasks
import pytest
from levels_stage import Gates, descendants, failure_of, run_sub
from levels_stage import clean as clean
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE, is_gone, wait_until, wait_until_gone

from pytest_aorta.runtime import Orchestrator, Outcome, TaskRef, Worker, WorkerClosed

# In order


@pytest.mark.statement(41)
def test_close_waits_for_the_runs_that_were_accepted_and_rejects_new_ones(gates: Gates) -> None:
    worker = Worker(3, num_sub_workers=1)
    gate = worker.register(levels_tasks.gate)
    handles = [
        worker.submit(lambda orch, args, config, name=name: orch.submit_sub(gate, gates.at(name))) for name in "ab"
    ]
    gates.wait_until_began("a")
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"have not ended within 0\.05 s; close can be called again"):
            worker.close(timeout=0.05)
    assert not handles[0].done
    with pytest.raises(WorkerClosed):
        worker.run(lambda orch, args, config: None)

    threading.Timer(0.1, gates.open).start()
    worker.close()
    for handle in handles:
        assert handle.done
        handle.wait()
    assert gates.log() == ["a began", "a ended", "b began", "b ended"]


@pytest.mark.statement(41)
def test_a_run_that_is_still_being_built_is_completed(gates: Gates) -> None:
    worker = Worker(3, num_sub_workers=1)
    nothing = worker.register(levels_tasks.nothing)
    worker.init()
    building = threading.Event()

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        building.set()
        time.sleep(0.1)  # meanwhile, ``close`` begins
        orch.submit_sub(nothing)

    with ThreadPoolExecutor(1) as threads:
        submitted = threads.submit(worker.submit, build)
        building.wait(PATIENCE)
        worker.close()
        assert [record.ok for record in submitted.result().records] == [True]


@pytest.mark.statement(39)
def test_a_task_that_is_under_way_does_not_hold_up_the_end(gates: Gates) -> None:
    worker = Worker(3, num_sub_workers=1, grace=0.1)
    gate, nothing = worker.register(levels_tasks.gate), worker.register(levels_tasks.nothing)
    first = worker.submit(lambda orch, args, config: orch.submit_sub(gate, gates.at("a")))
    second = worker.submit(lambda orch, args, config: orch.submit_sub(nothing))
    gates.wait_until_began("a")
    first.cancel("enough", running=True)
    worker.close()
    assert [record.ok for record in second.records] == [True]


# After exceptions


def test_an_exception_within_with_ends_what_runs_and_goes_on(gates: Gates) -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.append(orch.submit_sub(gate, gates.at("a")))
        refs.append(orch.submit_sub(gate, gates.at("b")))

    with pytest.raises(LookupError, match="of the user"), Worker(3, num_sub_workers=1, grace=0.1) as worker:  # noqa: PT012
        gate = worker.register(levels_tasks.gate)
        worker.submit(build)
        worker.submit(build)
        gates.wait_until_began("a")
        raise LookupError("of the user")

    records = [ref.wait(0) for ref in refs]
    assert [record.outcome for record in records] == [Outcome.CANCELLED] * 4
    assert failure_of(records[0])[2] == "the worker is closed after an exception"


# Without an end

OWNER = """
import os, sys, time
sys.path.insert(0, {folder!r})
import levels_tasks
import psutil
from pytest_aorta.runtime import TaskArgs, Worker

def inner(orch, args, config):
    for name in ("a", "b"):
        orch.submit_sub(handle, TaskArgs().add_scalar(args.scalars[0]).add_scalar(f"{{args.scalars[1]}}{{name}}"))

def outer(orch, args, config):
    for worker in (0, 1):
        orch.submit_next_level(nested, TaskArgs().add_scalar({gates!r}).add_scalar(str(worker)), worker=worker)
    orch.submit_sub(handle, TaskArgs().add_scalar({gates!r}).add_scalar("top"))

top = Worker(4, num_sub_workers=1)
top.add_worker(Worker(3, num_sub_workers=2), host={host!r})
top.add_worker(Worker(3, num_sub_workers=2))
handle = top.register(levels_tasks.gate)
nested = top.register(inner)
top.submit(outer)
heir = os.fork()
if heir == 0:
    time.sleep({patience})  # with copies of all descriptors
    os._exit(0)
while not os.path.exists({gates!r} + "/all began"):
    time.sleep(0.01)
print(heir, *(it.pid for it in psutil.Process().children(recursive=True) if it.pid != heir), flush=True)
{end}
"""


@pytest.mark.statement(37)
@pytest.mark.parametrize(
    ("host", "end", "ended"),
    [
        (None, "time.sleep(600)", -signal.SIGKILL),
        ("popen", "time.sleep(600)", -signal.SIGKILL),
        (None, "os._exit(3)", 3),
        (None, "raise SystemExit('enough')", 1),
    ],
    ids=["tree-killed", "host-killed", "tree-exits", "tree-ends"],
)
def test_nothing_outlives_the_process_of_a_worker(
    gates: Gates, host: str | None, end: str, ended: int, tmp_path: Path
) -> None:
    """Although tasks run, and a fork of it lives on."""
    script = tmp_path / "owner.py"
    folder, told = str(Path(__file__).parent), tmp_path / "all began"
    script.write_text(OWNER.format(folder=folder, gates=str(gates.folder), host=host, end=end, patience=PATIENCE))
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script)],  # Python 3.12 warns of each fork beside threads
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stderr is not None
        heir = 0
        try:
            gates.wait_until_began("0a", "0b", "1a", "1b", "top")
            told.touch()
            heir, *below = map(int, owner.stdout.readline().split())
            assert len(below) >= 2 + 5 + 1  # two workers, processes of their slots, and a zygote
            if ended < 0:
                os.kill(owner.pid, -ended)
            assert owner.wait(PATIENCE) == ended
            wait_until_gone(below)
            assert not is_gone(heir)  # else this has shown nothing
        finally:
            owner.kill()
            if heir:
                os.kill(heir, signal.SIGKILL)
        assert owner.stderr.read() == ("enough\n" if ended == 1 else "")


def test_a_fork_that_drops_or_closes_a_worker_does_not_end_it() -> None:
    with Worker(3, num_sub_workers=1) as worker:
        echo = worker.register(levels_tasks.echo)
        assert run_sub(worker, echo, 1).ok
        fork = os.fork()
        if fork == 0:
            code = 1
            try:
                worker.close()
                try:
                    worker.submit(lambda orch, args, config: None)
                except RuntimeError as error:
                    code = 0 if "of which this one is a fork" in str(error) else 2
                del worker
                gc.collect()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
        assert run_sub(worker, echo, 2).ok


@pytest.mark.statement(40)
def test_only_the_thread_that_has_started_a_worker_closes_it_while_it_lives() -> None:
    before = descendants()
    worker = Worker(3, num_sub_workers=1)
    go_on = threading.Event()

    def start() -> None:
        worker.init()
        go_on.wait(PATIENCE)

    thread = threading.Thread(target=start, name="the first")
    thread.start()
    wait_until(lambda: worker._has_started, "the start")
    with pytest.raises(RuntimeError, match="than the first, which called init and still lives"):
        worker.close()
    go_on.set()
    thread.join()

    worker.close()
    assert descendants() <= before
