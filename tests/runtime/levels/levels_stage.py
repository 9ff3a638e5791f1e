"""What tests of workers have in common: gates that tasks wait at, runs of one task, and counting what is left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import levels_tasks
import psutil
import pytest
from support.processes import PATIENCE, is_gone, wait_until

from pytest_aorta.runtime import CallableHandle, Orchestrator, Outcome, TaskArgs, TaskRecord, TaskRef, Worker
from pytest_aorta.runtime import worker as worker_module
from pytest_aorta.runtime.resources.devices import Devices


def scalars(*values: Any) -> TaskArgs:
    """Arguments that are plain values."""
    args = TaskArgs()
    for value in values:
        args.add_scalar(value)
    return args


@pytest.fixture(autouse=True, scope="module")
def no_torch() -> Iterator[None]:
    """For modules that import it: workers start in a tenth of the time, although other tests have imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_module, "expects_tensors", lambda: False)
        yield


@pytest.fixture(autouse=True, scope="module")
def own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For modules that import it: devices are names, and not those of tests that run beside them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_module, "find_devices", lambda: Devices("none", ()))
        patch.setenv("PYTEST_AORTA_LEASES_DIR", str(tmp_path_factory.mktemp("leases")))
        yield


class Gates:
    """A folder through which tasks tell that they have begun, and in which they find that they may go on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def at(self, name: str) -> TaskArgs:
        """Arguments of ``levels_tasks.gate``."""
        return scalars(str(self.folder), name)

    def open(self, name: str = "all") -> None:
        """Let one go on, or all."""
        (self.folder / f"{name}.open").touch()

    def log(self) -> list[str]:
        """``a began``, ``b began``, ``a ended``, ..."""
        file = self.folder / "log"
        return file.read_text().splitlines() if file.exists() else []

    def began(self, *names: str) -> bool:
        """Whether all of them have."""
        log = self.log()
        return all(f"{name} began" in log for name in names)

    def wait_until_began(self, *names: str) -> None:
        """Block until all of them have."""
        wait_until(lambda: self.began(*names), f"the beginning of {names}")

    def wait_until_noted(self, line: str) -> None:
        """Block until a task has written this line."""
        wait_until(lambda: line in self.log(), f"the line {line!r}")


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path)
    yield gates
    gates.open()


def descendants(pid: int | None = None) -> set[int]:
    """Every process below one (this one, if not given) that still runs."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {process.pid for process in found if not is_gone(process.pid)}


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """What is started within ends within, or very soon after: processes, threads of ours, open files."""
    before, files = descendants(), open_files()
    yield
    wait_until(lambda: descendants() <= before, "the end of all processes")
    wait_until(lambda: open_files() <= files, "the closing of all files")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with nothing_left():
        yield


def open_files() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def run_one(submit: Callable[[Orchestrator], TaskRef], worker: Worker) -> TaskRecord:
    """The record of a run of one task, whatever became of it."""
    found: list[TaskRef] = []
    handle = worker.submit(lambda orch, args, config: found.append(submit(orch)))
    record = found[0].wait(PATIENCE)
    with contextlib.suppress(RuntimeError):
        handle.wait(PATIENCE)
    return record


def run_sub(worker: Worker, handle: CallableHandle, /, *values: Any) -> TaskRecord:
    """The record of one SUB task with plain values."""
    return run_one(lambda orch: orch.submit_sub(handle, scalars(*values)), worker)


def run_next(worker: Worker, handle: CallableHandle, /, *values: Any, **where: Any) -> TaskRecord:
    """The record of one task of the next level with plain values."""
    return run_one(lambda orch: orch.submit_next_level(handle, scalars(*values), **where), worker)


def failure_of(record: TaskRecord) -> tuple[Outcome, str, str]:
    """Outcome, type and message."""
    assert record.failure is not None
    return record.outcome, record.failure.type, record.failure.message


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(3, num_sub_workers=2, grace=0.1) as worker:
        worker.init()
        yield worker


def use_once(worker: Worker, target: Any, *values: Any) -> Any:
    """Register, run, drop."""
    handle = worker.register(target)
    try:
        record = run_sub(worker, handle, *values)
        assert record.ok, record
        return record.payload
    finally:
        worker.unregister(handle)


class Host:
    """A worker, and handles of the functions of ``levels_tasks``, or of another module, by their names."""

    def __init__(self, worker: Worker, tasks: ModuleType = levels_tasks) -> None:
        self.worker = worker
        self._tasks = tasks

    def __getattr__(self, name: str) -> CallableHandle:
        handle = vars(self)[name] = self.worker.register(getattr(self._tasks, name))
        return handle


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Worker(3, num_sub_workers=2, grace=0.2) as worker:
        yield Host(worker)
