"""The end of the process, the thread or the object that owns a worker is the end of all below it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import levels_tasks
import pytest
from levels_stage import clean as clean
from levels_stage import descendants, run_sub
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE, is_gone, wait_until, wait_until_gone

from pytest_aorta.runtime import Worker

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

TREE = "top = Worker(4, num_sub_workers=1)\ntop.add_worker(Worker(3, num_sub_workers=1))"
HOST = "top = Worker(4)\ntop.add_worker(Worker(3, num_sub_workers=1), host='popen')"


@pytest.mark.statement(37)
@pytest.mark.parametrize(
    ("build", "end", "number"),
    [
        (TREE, "time.sleep({patience})", signal.SIGKILL),
        (HOST, "time.sleep({patience})", signal.SIGKILL),
        (TREE, "os._exit(3)", None),
        (TREE, "", None),
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
def test_any_thread_closes_once_the_one_that_started_it_has_ended() -> None:
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
