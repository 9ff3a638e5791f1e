"""Zygotes of small modules, for tests: start them, hand them tasks, and see that nothing is left of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_aorta.runtime.zygote import Task, Zygote, ZygoteSpec
from pytest_aorta.runtime.zygote_pool import ZygotePool
from support.processes import MARK, PATIENCE, kill_all, marked

PREPARE = """
def prepare(argument):
    return {"argument": argument}
"""

#: For tasks that only tell, and do not listen: ``def run(payload, send)``.
TELL = """

def tell(payload, channel):
    run(payload, channel.send)
"""


@dataclass
class Finished:
    messages: list[dict[str, Any]]
    ended: dict[str, Any]
    stdout: str
    stderr: str
    stacks: str

    @property
    def returncode(self) -> int:
        """Of the task's process, negative for a signal."""
        return int(self.ended["returncode"])

    @property
    def told(self) -> list[Any]:
        """Values of the messages that the task sent with ``send({"value": ...})``."""
        return [message["value"] for message in self.messages if "value" in message]


class Nursery:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = str(path)
        self.zygotes: list[Zygote] = []
        self._modules = (f"nursery_module_{number}" for number in itertools.count())
        self._tasks = itertools.count()

    def module(self, source: str) -> str:
        """Write a module; its name. ``prepare`` returns its argument unless the source has another one."""
        name = next(self._modules)
        source = textwrap.dedent(source)
        (self.path / f"{name}.py").write_text(("" if "def prepare" in source else PREPARE) + source + TELL)
        return name

    def spec(self, source: str, *, environ: Mapping[str, str] | None = None, **fields: Any) -> ZygoteSpec:
        """For a module with ``run(payload, send)``, or with ``run(payload, channel)`` to listen as well."""
        name = self.module(source)
        run = "run" if "def run(payload, channel)" in source else "tell"
        given: dict[str, Any] = {
            "command": (sys.executable,),
            "environ": {**os.environ, MARK: self.mark, **(environ or {})},
            "prepare": f"{name}:prepare",
            "argument": None,
            "run": f"{name}:{run}",
            "sys_path": (str(self.path),),
            "cwd": str(self.path),
            "rehearse": f"{name}:rehearse" if "def rehearse" in source else None,
            **fields,
        }
        return ZygoteSpec(**given)

    def start(self, source: str, **fields: Any) -> Zygote:
        """A zygote that may not be ready yet."""
        zygote = Zygote(self.spec(source, **fields))
        self.zygotes.append(zygote)
        return zygote

    def submit(self, server: Zygote, payload: Any = None, **settings: Any) -> Task:
        """Hand over a task; its logs are files of the nursery."""
        number = next(self._tasks)
        logs: dict[str, Any] = {name: self.path / f"{number}.{name}" for name in ("stdout", "stderr", "stacks")}
        server.wait_ready()
        task = server.start_task(payload, **logs, **settings)
        vars(task)["logs"] = logs
        return task

    def run(self, server: Zygote, payload: Any = None, **settings: Any) -> Finished:
        return finish(self.submit(server, payload, **settings))

    def close(self) -> None:
        for zygote in self.zygotes:
            zygote.close()

    def alive(self) -> list[psutil.Process]:
        """Processes that were started from here, directly or not, and that still run."""
        return marked(self.mark)


def finish(task: Task) -> Finished:
    messages = []
    while (message := task.next_message(deadline())) is not None:
        messages.append(message)
    assert task.ended is not None
    logs = vars(task)["logs"]
    texts = {name: path.read_text() if path.exists() else "" for name, path in logs.items()}
    return Finished(messages, vars(task.ended), **texts)


def message_of(task: Task) -> Any:
    message = task.next_message(deadline())
    assert message is not None
    return message["value"]


def deadline() -> float:
    """A time that is not reached, unless something hangs."""
    return time.monotonic() + 6 * PATIENCE


@contextlib.contextmanager
def nursery_at(path: Path) -> Iterator[Nursery]:
    nursery = Nursery(path)
    try:
        yield nursery
    finally:
        nursery.close()
        left = nursery.alive()
        kill_all(left)
    assert left == []


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with nursery_at(tmp_path) as nursery:
        yield nursery


@pytest.fixture
def pool(nursery: Nursery) -> Iterator[ZygotePool]:
    """Two zygotes at most; ended before the nursery."""
    with contextlib.closing(ZygotePool(2)) as pool:
        yield pool


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


#: Counts the processes that import it. Its task sends the id of its zygote, and waits for a file where it gets one.
ECHO = """
    import os
    open("imports", "a").write("x")
    def prepare(argument):
        return {"pid": os.getpid()}
    def run(payload, send):
        send({"value": os.getppid()})
        if payload:
            open(payload).read()
"""


def touched(pool: ZygotePool, spec: ZygoteSpec) -> Zygote:
    server = pool.acquire(spec)
    pool.release(server)
    return server


def imports(nursery: Nursery) -> int:
    return len((nursery.path / "imports").read_text())
