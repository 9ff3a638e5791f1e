"""What a leaf costs and what it is: one process, forked from a zygote that all share, as different as a fresh one."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from typing import Any

import levels_tasks
import psutil
import pytest
from levels_stage import clean as clean
from levels_stage import descendants, run_next, run_sub
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from support.processes import is_gone, wait_until

from pytest_aorta.runtime import Orchestrator, Worker
from pytest_aorta.runtime.process_tree import VARIABLE
from pytest_aorta.runtime.resources.devices import core_shares, device_variables, find_devices, threads_of

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@pytest.fixture
def one_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    """All slots have the same number of threads, however many cores there are."""
    for name in THREADS:
        monkeypatch.setenv(name, "1")


def zygote_pids(worker: Worker) -> list[int]:
    """Of the zygotes that live."""
    entries = worker._processes._pool._entries.values()
    zygotes = [entry.zygote for entry in entries if entry.zygote is not None]
    return [zygote._process.pid for zygote in zygotes if zygote.alive()]


@pytest.mark.usefixtures("one_zygote")
def test_a_leaf_is_one_process_and_a_worker_has_one_zygote_besides() -> None:
    before = descendants()
    with Worker(3, device_ids=range(3), num_sub_workers=3) as worker:
        worker.init()
        (zygote,) = zygote_pids(worker)
        assert len(descendants() - before) == 6 + 1
        assert len(descendants(zygote)) == 6


# What a slot sees


def environment(args: Any) -> dict[str, Any]:
    """As this process sees it, as C code does, and as what it starts."""
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    seen_by_c = {name: getenv(name.encode()) for name in names}
    return {
        "python": {name: value for name, value in os.environ.items() if name != VARIABLE},
        "c": {name: None if value is None else value.decode() for name, value in seen_by_c.items()},
        "started": fresh_environment({}),
    }


def fresh_environment(variables: dict[str, str]) -> dict[str, str]:
    """What an interpreter sees that is started with more variables; the tag is another one for each zygote."""
    command = [sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"]
    environ = {**os.environ, **variables}
    seen = dict(json.loads(subprocess.run(command, env=environ, capture_output=True, check=True, text=True).stdout))
    return {name: value for name, value in seen.items() if name != VARIABLE}


def test_the_variables_of_a_slot_are_those_of_an_interpreter_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("LEVELS_TEXT", "a=b\ntwo lines \udcff\u20ac")
    with Worker(3, device_ids=[3, 5], num_sub_workers=1) as worker:
        look, cores = worker.register(environment), worker.register(levels_tasks.threads_and_cores)
        found = find_devices()
        for slot, device in ((0, 3), (1, 5), (None, None)):
            if slot is None:
                seen, own = run_sub(worker, look).payload, run_sub(worker, cores).payload
            else:
                seen, own = (run_next(worker, handle, worker=slot).payload for handle in (look, cores))
            variables = {name: value for name, value in own["threads"].items() if name not in os.environ}
            expected = fresh_environment({**variables, **({} if device is None else device_variables([device], found))})
            assert seen["python"] == seen["started"] == expected
            assert seen["c"] == {name: expected.get(name) for name in seen["c"]}


def test_a_successor_has_the_variables_and_the_cores_of_its_predecessor() -> None:
    with Worker(3, device_ids=[3, 5], grace=0.1) as worker:
        look, die = worker.register(levels_tasks.threads_and_cores), worker.register(levels_tasks.die)
        before = [run_next(worker, look, worker=slot).payload for slot in (0, 1)]
        assert [each["visible"] for each in before] == ["3", "5"]

        run_next(worker, die, worker=1)
        assert [run_next(worker, look, worker=slot).payload for slot in (0, 1)] == before

        os.kill(zygote_pids(worker)[0], signal.SIGKILL)
        wait_until(lambda: [run_next(worker, look, worker=slot).payload for slot in (0, 1)] == before, "the successors")


# Deaths


#: Leaves a process of a session of its own behind, and prints its pid.
SLEEPER = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, str(os.getpid()).encode())
        os.close(1)
        time.sleep(600)
"""


def leave_daemons(args: Any) -> list[int]:
    """Sleepers of sessions of their own: one as it is, and one of which no variable tells whose it is."""
    pids = []
    environments: list[dict[str, str] | None] = [None, {}]
    for environ in environments:
        command = [sys.executable, "-c", SLEEPER]
        pids.append(int(subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True).stdout))
    return pids


@pytest.mark.usefixtures("one_zygote")
def test_the_death_of_a_slot_ends_what_it_has_left_and_nothing_of_others() -> None:
    with Worker(3, device_ids=[0, 1], grace=0.1) as worker:
        leave, die = worker.register(leave_daemons), worker.register(levels_tasks.die)
        pids = [run_next(worker, leave, worker=slot).payload for slot in (0, 1)]
        assert not any(is_gone(pid) for each in pids for pid in each)

        run_next(worker, die, worker=0)

        assert all(map(is_gone, pids[0]))  # at once: its successor finds the device free of them
        assert not any(map(is_gone, pids[1]))


def environment_below(orch: Orchestrator, args: Any, config: Any) -> list[Any]:
    """Variables of threads in the process of a worker, and in that of a slot below it; or the next level's answer."""
    if isinstance(config, list):
        deeper, slot = config
        return [orch.submit_next_level(deeper, config=slot).result()]
    return [os.environ.get("OMP_NUM_THREADS"), orch.submit_sub(config).result()["threads"]["OMP_NUM_THREADS"]]


def test_a_tree_of_workers_starts_one_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    others = set(psutil.Process().children(recursive=True))
    with Worker(5, grace=0.1) as top:
        middle = Worker(4, grace=0.1)
        middle.add_worker(Worker(3, num_sub_workers=2, grace=0.1))
        top.add_worker(middle)
        below, slot = top.register(environment_below), top.register(levels_tasks.threads_and_cores)
        found: list[Any] = []

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            found.append(orch.submit_next_level(below, config=[below, slot]).result())

        top.run(build)
        started = set(psutil.Process().children(recursive=True)) - others
        commands = {tuple(process.cmdline()) for process in started}

    assert len(commands) == 1
    assert found == [[[None, str(threads_of(core_shares(2)[0]))]]]
