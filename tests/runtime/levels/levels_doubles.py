"""Doubles: a dispatcher whose endpoints do nothing, so that a test says when each task ends, and how."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import pytest

from pytest_aorta.runtime import CallableHandle, Orchestrator, Outcome, TaskFailure, TaskRef
from pytest_aorta.runtime.callables import Callables, Definition
from pytest_aorta.runtime.dispatcher import Dispatch, Dispatcher, GraphRun, TaskKind
from pytest_aorta.runtime.records import SUCCEEDED, Completion
from pytest_aorta.runtime.tensors import Heap


class FakeEndpoint:
    """Takes tasks, and does nothing with them."""

    def __init__(self, kind: TaskKind, identity: int, started: list[str]) -> None:
        self.kind = kind
        self.id = identity
        self.name = f"{kind.name.split('_')[0].lower()} {identity}"
        self.busy = 0
        self.gone: TaskFailure | None = None
        self.ready = True
        self.running: list[Dispatch] = []
        self.stopped: list[str] = []
        self.refuses: Exception | None = None
        self._started = started

    def start(self, dispatch: Dispatch) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.running.append(dispatch)
        self._started.append(f"{dispatch.node.label} on {self.name}")

    def stop(self, dispatch: Dispatch, why: str) -> None:
        self.stopped.append(f"{dispatch.node.label}: {why}")


class _AnyCallables(Callables):
    """Has every callable that is asked for."""

    def __init__(self, eligible: Mapping[str, frozenset[int]]) -> None:
        super().__init__("bench")
        self._eligible = eligible

    def resolve(self, handle: object, workers: Iterable[int] = ()) -> tuple[Definition, frozenset[int] | None]:
        assert isinstance(handle, CallableHandle)
        definition = _definition(handle.name)
        self.update([definition], ())
        return definition, self._eligible.get(handle.name)


class DispatcherBench:
    """A dispatcher with ``nexts`` fake workers of the next level and ``subs`` fake SUB workers, and one open run."""

    def __init__(self, nexts: int = 0, subs: int = 0, grace: float = 60.0) -> None:
        self.started: list[str] = []
        self.dispatcher = Dispatcher("bench", grace)
        self.next = [FakeEndpoint(TaskKind.NEXT_LEVEL, number, self.started) for number in range(nexts)]
        self.sub = [FakeEndpoint(TaskKind.SUB, number, self.started) for number in range(subs)]
        for endpoint in (*self.next, *self.sub):
            self.dispatcher.placement.add(endpoint)
        self.run = self.dispatcher.open_run(GraphRun(ring_size=2**17))
        self.eligible: dict[str, frozenset[int]] = {}
        self.orch = Orchestrator(self.dispatcher, self.run, cast(Heap, None), _AnyCallables(self.eligible))

    def submit(self, name: str, worker: int | None = None, **more: Any) -> TaskRef:
        """A task for one worker of the next level, or for any."""
        return self.orch.submit_next_level(_handle(name), worker=worker, **more)

    def group(self, name: str, workers: Sequence[int], **more: Any) -> TaskRef:
        """A group on these workers."""
        return self.orch.submit_next_level_group(_handle(name), [None] * len(workers), workers=workers, **more)

    def submit_sub(self, name: str, size: int | None = None, **more: Any) -> TaskRef:
        """A SUB task, or a group of them."""
        if size is None:
            return self.orch.submit_sub(_handle(name), **more)
        return self.orch.submit_sub_group(_handle(name), [None] * size, **more)

    def end(self, endpoint: FakeEndpoint, outcome: Outcome = Outcome.SUCCESS, why: str = "") -> None:
        """The task that runs there has ended."""
        succeeded = outcome is Outcome.SUCCESS
        completion = SUCCEEDED if succeeded else Completion(outcome, None, TaskFailure("Broken", why))
        self.dispatcher.ended(endpoint.running.pop(0), completion)

    def lose(self, endpoint: FakeEndpoint) -> None:
        """It is out of service."""
        with self.dispatcher.turn:
            endpoint.gone = TaskFailure("ProcessDied", "out of service")

    def news(self) -> list[str]:
        """What has been started since it was last asked."""
        news, self.started[:] = self.started[:], []
        return news

    def close(self) -> None:
        self.dispatcher.loop.close()


MakeBench = Callable[..., DispatcherBench]


@pytest.fixture
def bench_of() -> Iterator[MakeBench]:
    benches = []

    def make(**sizes: Any) -> DispatcherBench:
        benches.append(DispatcherBench(**sizes))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@functools.cache
def _definition(name: str) -> Definition:
    return Definition(name, name.encode())


def _handle(name: str) -> CallableHandle:
    return CallableHandle("", "", int(time.monotonic() * 1e6), name)
