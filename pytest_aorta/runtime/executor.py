"""``concurrent.futures.Executor`` over slots: a process that dies costs its task, and no other one."""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from pytest_aorta.runtime.arguments import expect, seconds, whole_number
from pytest_aorta.runtime.callables import MAX_MESSAGE, PLAIN, Definition, define, dumps
from pytest_aorta.runtime.dispatcher import GraphRun, GraphTask, record_of
from pytest_aorta.runtime.graph import UNSTARTED, GraphNode
from pytest_aorta.runtime.records import Outcome, StartupError, TaskError, TaskRecord
from pytest_aorta.runtime.worker import Worker

#: Seconds before the first repetition of a call, doubled for each further one, and the most.
BACK_OFF, MOST_BACK_OFF = 0.1, 30.0


class ProcessDied(TaskError, BrokenProcessPool):
    """The process of a call died; those of other calls did not."""


@dataclass(frozen=True)
class CallOptions:
    """How calls are carried out, see ``Executor``."""

    timeout: float | None = None
    retries: int = 0
    retry_on: tuple[type[BaseException], ...] = ()
    memory: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.timeout is not None:
            seconds("timeout", self.timeout)
        whole_number("retries", self.retries)
        if self.memory is not None:
            whole_number("memory", self.memory, 1)
        for name, value in self.env.items():
            expect("a name in env", name, str, "a text")
            expect(f"env {name}", value, str, "a text")


class CallFuture(futures.Future[Any]):
    """A call; ``record`` says of the last attempt how and where it ended, ``attempts`` how many there were."""

    def __init__(self, pool: _Pool, options: CallOptions) -> None:
        super().__init__()
        self.attempts = 0
        self.record: TaskRecord | None = None
        self._pool = pool
        self._options = options
        self._node: GraphNode | None = None

    def running(self) -> bool:
        """Whether it has started, and has not ended."""
        return not self.done() and (self._node is not None and self._node.state not in UNSTARTED)

    def result(self, timeout: float | None = None) -> Any:
        """What the call returned; raises what it raised."""
        if timeout is None:
            self._pool.dispatcher.loop.poll_until(self.done)
        return super().result(timeout)

    def cancel(self) -> bool:
        """Do not start it, if it has not started yet."""
        with self._pool.turn:
            if self._node is not None:
                if self._node.state not in UNSTARTED:
                    return self.cancelled()
                self._pool.dispatcher.cancel(self._node, "cancelled", running=False)
        return super().cancel()


class Executor(futures.Executor):
    """Calls functions in processes that are forked from a warm one, as ``ProcessPoolExecutor`` does, and survives them.

    A call whose process dies, or that takes too long, fails; its slot gets another process. Functions and arguments go
    by cloudpickle. Nothing starts before the first call. ``options`` gives an executor for other calls on the same
    processes.

    Args:
        max_workers: processes; as many as there are cores, if not given.
        initializer: called in each process before its first call.
        initargs: its arguments.
        timeout: seconds that a call may run; then its process is killed, and ``result`` raises a ``TaskError`` that
            shows where it hung.
        retries: how often a call is repeated whose process has died or that took too long, after pauses that double.
        retry_on: exceptions after which it is repeated as well.
        memory: bytes that a call may allocate besides what its process has (``RLIMIT_AS``), then it gets a
            ``MemoryError``.
        env: variables that are set while a call runs.
        pin: as for ``Worker``.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        timeout: float | None = None,
        retries: int = 0,
        retry_on: tuple[type[BaseException], ...] = (),
        memory: int | None = None,
        env: Mapping[str, str] | None = None,
        pin: Any = "auto",
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._options = CallOptions(timeout, retries, retry_on, memory, env or {})
        prepare = None if initializer is None else partial(initializer, *initargs)
        self._pool = _Pool(max_workers or len(os.sched_getaffinity(0)), prepare, pin)
        self._owns = True
        _pools.add(self._pool)

    def options(self, **changes: Any) -> Executor:
        """An executor on the same processes, for calls with other ``timeout``, ``retries``, ``memory``, ``env``, ..."""
        other = Executor.__new__(type(self))
        other._options, other._pool, other._owns = replace(self._options, **changes), self._pool, False
        return other

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CallFuture:
        """Call ``fn(*args, **kwargs)`` in a process. Never blocks, but for the start of the processes.

        Raises:
            TypeError: the call cannot be pickled.
            BrokenProcessPool: the processes could not be started.
            RuntimeError: after ``shutdown``.
        """
        return self._pool.submit(fn, args, kwargs, self._options)

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        **_: Any,
    ) -> Iterator[Any]:
        """As ``ProcessPoolExecutor.map``: results in the order of the items, ``chunksize`` items with one task."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        items = zip(*iterables, strict=False)
        chunks = iter(lambda: tuple(itertools.islice(items, chunksize)), ())
        return _joined(super().map(partial(_call_each, fn), chunks, timeout=timeout))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no further call; end the processes once all calls have ended. ``wait``: return then."""
        self._pool.shutdown(wait, cancel_futures)

    def __del__(self) -> None:
        if getattr(self, "_owns", False):
            self._pool.shutdown(False, False)


class _Pool:
    """The worker of an executor and of those that ``options`` made of it, and its calls that have not ended."""

    def __init__(self, size: int, prepare: Callable[[], object] | None, pin: Any) -> None:
        self._worker = Worker(
            3, num_sub_workers=size, prepare=prepare, allowed_failures=None, pin=pin, max_result=MAX_MESSAGE
        )
        self._handle = self._worker.register("pytest_aorta.runtime.leaf:call")
        self._definition: Definition = self._worker.callables.definitions[self._handle.digest]
        self._run = GraphRun(ring_size=sys.maxsize, forgets=True)
        self._starting = threading.Lock()
        self._started = False
        self._broken: str | None = None
        self._over = False
        self._open: set[futures.Future[Any]] = set()
        self._idle = threading.Condition()

    def _start(self) -> None:
        with self._starting:
            if self._broken is not None:
                raise BrokenProcessPool(self._broken)
            if self._started:
                return
            try:
                self._worker.init()
            except StartupError as error:
                self._broken = str(error)
                raise BrokenProcessPool(self._broken) from error
            self._worker.disown()
            self.dispatcher = self._worker.dispatcher
            self.turn = self.dispatcher.turn
            self.dispatcher.open_run(self._run)
            self._started = True

    def submit(self, fn: Callable[..., Any], args: Any, kwargs: Any, options: CallOptions) -> CallFuture:
        if not self._started:
            if self._over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._start()
        data, keeps = _packed(fn, args, kwargs, options)
        future = CallFuture(self, options)
        with self._idle:
            if self._over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._open.add(future)
        future.add_done_callback(self._ended)
        self._attempt(future, data, keeps, getattr(fn, "__qualname__", type(fn).__qualname__))
        return future

    def _attempt(self, future: CallFuture, data: bytes, keeps: Any, label: str) -> None:
        task = GraphTask(self._definition, config=data, timeout=future._options.timeout)
        with self.turn:
            if future.done():  # it was cancelled during the pause
                return
            future.attempts += 1
            node = future._node = self.dispatcher.submit(self._run, task, label)
            self.dispatcher.watch(task, partial(self._settle, future, node, data, keeps, label))
            self.dispatcher.release_scope([node])

    def _settle(self, future: CallFuture, node: GraphNode, data: bytes, keeps: Any, label: str) -> None:
        record = future.record = record_of(node)
        if future.cancelled() or record.outcome is Outcome.CANCELLED:
            futures.Future.cancel(future)
            future.set_running_or_notify_cancel()
            return
        error: BaseException | None = None
        if not record.ok:
            error = None if record.failure is None else record.failure.exception()
            if error is None:
                error = ProcessDied(record) if record.outcome is Outcome.ENDPOINT_FAILURE else TaskError(record)
        options, lost = future._options, (Outcome.ENDPOINT_FAILURE, Outcome.TIMEOUT)
        if future.attempts <= options.retries and (record.outcome in lost or isinstance(error, options.retry_on)):
            moment = time.monotonic() + min(MOST_BACK_OFF, BACK_OFF * 2.0 ** (future.attempts - 1))
            future._node = None
            self.dispatcher.loop.call_at(moment, partial(self._attempt, future, data, keeps, label))
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(record.value)

    def _ended(self, future: futures.Future[Any]) -> None:
        with self._idle:
            self._open.discard(future)
            self._idle.notify_all()

    def shutdown(self, wait: bool, cancel_futures: bool) -> None:
        with self._idle:
            was_over, self._over = self._over, True
            waiting = list(self._open)
        for future in waiting if cancel_futures else ():
            future.cancel()
        if wait:
            self._close()
        elif not was_over:
            threading.Thread(target=self._close, name="aorta-executor-shutdown").start()

    def _close(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: not self._open)
        with self._starting:
            if self._started:
                self._started = False
                self.dispatcher.close_run(self._run)
                self._worker.close()


_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """At the end of the interpreter, carry out the calls that were submitted."""
    for pool in list(_pools):
        pool.shutdown(True, False)


def _packed(fn: Callable[..., Any], args: Any, kwargs: Any, options: CallOptions) -> tuple[bytes, Definition]:
    """The call as a pickle, and the function, which has to live until it has ended."""
    is_function = isinstance(fn, types.FunctionType | types.BuiltinFunctionType)
    definition = (_known(fn) if is_function else None) or define(fn)
    special = (dict(options.env), options.memory) if options.env or options.memory else None
    call = definition.data, args, kwargs, special
    if all(type(value) in PLAIN for value in (*args, *kwargs.values())):
        return pickle.dumps(call, 5), definition
    return dumps(call, f"the arguments of {definition.name} cannot be sent to another process"), definition


@lru_cache(maxsize=256)
def _known(fn: Any) -> Definition | None:
    """The definition of a function that goes by its name, and is the same each time; others may have new closures."""
    owner = getattr(fn, "__self__", None)
    if fn.__module__ == "__main__" or not (owner is None or isinstance(owner, types.ModuleType)):
        return None
    definition = define(fn)
    by_name = isinstance(fn, types.BuiltinFunctionType) or fn.__code__.co_code not in definition.data
    return definition if by_name else None


def _call_each(fn: Callable[..., Any], chunk: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [fn(*args) for args in chunk]


def _joined(chunks: Iterator[list[Any]]) -> Iterator[Any]:
    for chunk in chunks:
        chunk.reverse()  # such that nothing is kept that was handed out
        while chunk:
            yield chunk.pop()
