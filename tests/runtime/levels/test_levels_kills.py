"""A process is killed, or forked, or a worker is not closed: nothing is left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import levels_tasks
import pytest
from levels_stage import Gates, descendants, run_sub
from levels_stage import clean as clean
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from support.processes import PATIENCE, is_gone, wait_until, wait_until_gone

from pytest_aorta.runtime import Worker

TREE = """
import sys, time
sys.path.insert(0, {folder!r})
import levels_tasks
from pytest_aorta.runtime import TaskArgs, Worker

def inner(orch, args, config):
    for name in ("a", "b"):
        orch.submit_sub(handle, TaskArgs().add_scalar(args.scalars[0]).add_scalar(f"{{args.scalars[1]}}{{name}}"))

top = Worker(4, num_sub_workers=1)
for _ in range(2):
    top.add_worker(Worker(3, device_ids=[_], num_sub_workers=2))
handle = top.register(levels_tasks.gate)
nested = top.register(inner)

def outer(orch, args, config):
    for worker in (0, 1):
        orch.submit_next_level(nested, TaskArgs().add_scalar({gates!r}).add_scalar(str(worker)), worker=worker)
    orch.submit_sub(handle, TaskArgs().add_scalar({gates!r}).add_scalar("top"))

top.run(outer)
"""


@pytest.mark.statement(37)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_process_that_is_killed(gates: Gates, number: int, tmp_path: Path) -> None:
    script = tmp_path / "tree.py"
    script.write_text(TREE.format(folder=str(Path(__file__).parent), gates=str(gates.folder)))
    process = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    try:
        gates.wait_until_began("0a", "0b", "1a", "1b", "top")
        below = descendants(process.pid)
        assert len(below) >= 2 + 6 + 1  # two workers, their processes, one of its own; and zygotes
        os.kill(process.pid, number)
        process.wait()
        wait_until_gone(below)
    finally:
        process.kill()


def test_a_script_that_ends_without_closing_while_tasks_run_takes_all_with_it(gates: Gates, tmp_path: Path) -> None:
    script = tmp_path / "forgets.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import levels_tasks
        import psutil
        from pytest_aorta.runtime import TaskArgs, Worker

        worker = Worker(3, num_sub_workers=2)
        gate = worker.register(levels_tasks.gate)
        args = TaskArgs().add_scalar({str(gates.folder)!r}).add_scalar("a")
        worker.submit(lambda orch, _, config: orch.submit_sub(gate, args))
        print(*(process.pid for process in psutil.Process().children(recursive=True)))
        raise SystemExit("enough")
        """)
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=PATIENCE)

    assert (ran.returncode, ran.stderr) == (1, "enough\n")
    wait_until_gone(map(int, ran.stdout.split()))


OWNER = """
import os, sys, time
import psutil
from pytest_aorta.runtime import Worker

{build}
top.init()
heir = os.fork()
if heir == 0:
    time.sleep({patience})  # with copies of all descriptors
    os._exit(0)
below = [it.pid for it in psutil.Process().children(recursive=True) if it.pid != heir]
print(heir, *below, flush=True)
{end}
"""

SMALL_TREE = "top = Worker(4, num_sub_workers=1)\ntop.add_worker(Worker(3, num_sub_workers=1))"
HOST = "top = Worker(4)\ntop.add_worker(Worker(3, num_sub_workers=1), host='popen')"


@pytest.mark.statement(37)
@pytest.mark.parametrize(
    ("build", "end", "number"),
    [
        (SMALL_TREE, "time.sleep({patience})", signal.SIGKILL),
        (HOST, "time.sleep({patience})", signal.SIGKILL),
        (SMALL_TREE, "os._exit(3)", None),
        (SMALL_TREE, "", None),
    ],
    ids=["tree-killed", "host-killed", "tree-exits", "tree-ends"],
)
def test_a_fork_of_the_owner_keeps_nothing_alive(build: str, end: str, number: int | None, tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER.format(build=build, end=end.format(patience=PATIENCE), patience=PATIENCE))
    owner = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert owner.stdout is not None
    heir, *below = map(int, owner.stdout.readline().split())
    try:
        assert len(below) >= 3
        if number is not None:
            os.kill(owner.pid, number)
        owner.wait(PATIENCE)
        wait_until_gone(below)
        assert not is_gone(heir)  # else this has shown nothing
    finally:
        os.kill(heir, signal.SIGKILL)
        owner.kill()
        owner.stdout.close()


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
