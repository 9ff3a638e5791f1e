"""The code of processes below a worker: a slot that runs one task after the other, or a nested worker.

The other side is ``endpoint``. Messages to a process: ``task``, ``callables`` (new ones, and digests of those to
forget), ``cancel``, ``unmap``, ``close``; from it: ``ready`` or ``failed`` once, ``ended`` for each task.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_aorta.runtime.arguments import SlotArgs
from pytest_aorta.runtime.callables import MAX_RESULT, Definition, dump_result, load_argument, loads
from pytest_aorta.runtime.endpoint import Bulk, MessageSocket
from pytest_aorta.runtime.records import Outcome, TaskError, TaskFailure, failure_of
from pytest_aorta.runtime.tensors import MappedStorages, apart, is_private, share, to_bytes
from pytest_aorta.runtime.zygote import Seed

if TYPE_CHECKING:
    from pytest_aorta.runtime.channel import Channel
    from pytest_aorta.runtime.hosts import HostChannel
    from pytest_aorta.runtime.orchestrator import RunHandle
    from pytest_aorta.runtime.worker import Worker

    Transport: TypeAlias = MessageSocket | HostChannel

#: How a task ended that has not succeeded, and why.
Failed = tuple[Outcome, TaskFailure]

#: Arguments of a task without any.
NOTHING = SlotArgs()


def import_torch(argument: dict[str, Any]) -> dict[str, Any]:
    """Import torch once per zygote, where tensors are expected."""
    if argument["torch"]:
        import torch  # noqa: F401
    return {}


def serve(payload: dict[str, Any], channel: Channel) -> None:
    """Serve as a slot or as a worker until the other side closes the socket."""
    # A fork of this process is a zygote that has everything imported; later, there will be threads here.
    seed = Seed(channel) if payload["role"] == "worker" else None
    os.environ.update(payload.get("variables", {}))
    for name in payload.get("unset", ()):
        del os.environ[name]
    socket_fd, bulk_fd = channel.receive_fd(), channel.receive_fd()
    assert socket_fd is not None
    assert bulk_fd is not None
    _take_output(channel, payload["output"])
    if payload["tracker"]:
        from multiprocessing import resource_tracker

        vars(resource_tracker)["_resource_tracker"]._fd = channel.receive_fd()
    transport = MessageSocket(socket_fd, Bulk(bulk_fd))
    spec = transport.receive()
    if spec is None:
        return
    if payload["role"] == "worker":
        serve_worker(spec[0], transport, payload["owner"], seed)
    else:
        Seed.of_slot = channel, transport.socket
        SlotProcess(transport, MappedStorages(payload["owner"])).serve(*spec)


def _take_output(channel: Channel, targets: list[int]) -> None:
    for target in targets:
        fd = channel.receive_fd()
        if fd is not None:
            os.dup2(fd, target)
            os.close(fd)
    # New streams: the old ones were opened on the zygote's log, as a file in which they can seek.
    for name, target in (("stdout", 1), ("stderr", 2)):
        getattr(sys, name).flush()
        stream = open(target, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _arguments(
    mapped: MappedStorages,
    tensors: Any = (),
    scalars: Any = (),
    config: bytes | None = None,
    first_item: int | None = None,
    written: Any = (),
    gone: Any = (),
    results: bytes | None = None,
) -> tuple[SlotArgs, int | None, Any]:
    mapped.unmap(gone)
    arguments = [mapped.tensor(view) for view in tensors]
    others = () if results is None else loads(results)
    values = load_argument(scalars, others) if isinstance(scalars, bytes | bytearray) else tuple(scalars)
    return SlotArgs(tuple(arguments), values, config and load_argument(config, others)), first_item, written


def _own_failure(error: BaseException) -> TaskFailure:
    if isinstance(error, ItemError) and error.__cause__ is not None:
        return _own_failure(error.__cause__).at(f"item {error.args[0]}")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return failure_of(error, trace)


# Slots


class ItemError(Exception): ...


class SlotProcess:
    def __init__(self, transport: Transport, mapped: MappedStorages) -> None:
        self.transport = transport
        self.mapped = mapped
        self.check: bool | str = False
        self.most = MAX_RESULT
        self.changed: tuple[Any, ...] = ()
        self.definitions: dict[str, Definition] = {}
        self.callables: dict[str, Callable[[Any], Any]] = {}
        self.pid = os.getpid()

    def serve(
        self,
        definitions: list[Definition],
        preparation: Definition | None,
        check: bool | str = False,
        most: int = MAX_RESULT,
    ) -> None:
        """Get ready, then carry out orders until the other side is gone or says so."""
        self.check, self.most = check, most
        self.update(definitions, ())
        for definition in definitions:
            with contextlib.suppress(BaseException):  # its tasks will say what is wrong with it
                self.load(definition.digest)
        try:
            if preparation is not None:
                preparation.load()()
        except BaseException as error:
            self.transport.send(("failed", _own_failure(error)))
            return
        self.transport.send(("ready",))
        while (message := self.transport.receive()) is not None and message[0] != "close":
            word, *rest = message
            if word == "task":
                self.changed = ()
                self.transport.send(("ended", rest[0], *self.run(*rest[1:]), (), *self.changed))
            elif word == "unmap":
                self.mapped.unmap(rest[0])
            elif word == "callables":
                self.update(*rest)

    def update(self, new: list[Definition], gone: Sequence[str]) -> None:
        self.definitions.update((definition.digest, definition) for definition in new)
        for digest in gone:
            del self.definitions[digest]
            self.callables.pop(digest, None)

    def load(self, digest: str) -> Callable[[Any], Any]:
        if digest not in self.callables:
            self.callables[digest] = self.definitions[digest].load_task()
        return self.callables[digest]

    def run(self, digest: str, *arguments: Any) -> tuple[Any, Failed | None]:
        try:
            function = self.load(digest)
            args, first, written = _arguments(self.mapped, *arguments) if arguments else (NOTHING, None, ())
            before = _digests(args, () if self.check == "orders" else written) if self.check else {}
            returned = function(args) if first is None else _map(function, args.config, first)
            payload = dump_result(returned, self.most)
            if self.check == "orders":
                after = _digests(args, ())
                self.changed = ((tuple(before.values()), tuple(after.values()), _hash(payload or b"")),)
            elif before:
                after = _digests(args, written)
                self.changed = tuple(number for number in before if before[number] != after[number])
            self._end_fork()
            return apart(payload), None
        except BaseException as error:
            self._end_fork(error.code if isinstance(error, SystemExit) else 1)
            return None, (Outcome.TASK_FAILURE, _own_failure(error))

    def _end_fork(self, code: object = 1) -> None:
        if os.getpid() != self.pid:
            os._exit(code if isinstance(code, int) else 1)


def call(args: SlotArgs) -> Any:
    """What an ``Executor`` has slots do."""
    pickled, positional, named, special = args.config
    function = loads(pickled)
    if special is None:
        return function(*positional, **named)
    env, memory = special
    before, limits = {name: os.environ.get(name) for name in env}, resource.getrlimit(resource.RLIMIT_AS)
    os.environ.update(env)
    try:
        if memory is not None:
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, limits[1]))
        return function(*positional, **named)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _digests(args: SlotArgs, written: Sequence[int]) -> dict[int, str]:
    return {number: _hash(to_bytes(t)[3]) for number, t in enumerate(args.tensors) if number not in written}


def _hash(content: Any) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def _map(function: Any, items: Any, first: int) -> list[Any]:
    results: list[Any] = []
    try:
        for item in items:
            results.append(function(item))
    except BaseException as error:
        raise ItemError(first + len(results)) from error
    return results


# Workers


def serve_worker(spec: Any, transport: Transport, owner: int | None, seed: Seed | None = None) -> None:
    """Build a worker from its specification and serve until the level above closes or dies.

    ``owner``: the process whose memory it maps; ``None`` on another host, where tensors come and go by value.
    """
    from pytest_aorta.runtime.worker import Worker

    try:
        worker = Worker.from_spec(spec)
        worker.seed = seed
        worker.init()
    except BaseException as error:
        transport.send(("failed", _own_failure(error)))
        return
    mapped = MappedStorages(owner or 0)
    tasks: dict[int, WorkerTask] = {}
    with worker:
        transport.send(("ready",))
        while (message := transport.receive()) is not None and message[0] != "close":
            word, *rest = message
            if word == "task":
                # Its arguments are read here: later orders may unmap their memory.
                task = tasks[rest[0]] = WorkerTask(worker, transport, tasks, rest[0], returns_written=owner is None)
                task.start(mapped, *rest[1:])
            elif word == "cancel":
                if rest[0] in tasks:
                    tasks[rest[0]].cancel(*rest[1:])
            elif word == "unmap":
                mapped.unmap(rest[0])
            elif word == "callables":
                worker.callables.update(*rest)
        for task in list(tasks.values()):
            task.cancel("the worker is closed")  # nobody wants its result any more


def serve_host(argument: tuple[Any, list[str], bool], transport: Transport) -> None:
    """The service on another host; ``argument``: specification, ``sys.path`` of the side that asks, torch or not."""
    spec, sys_path, expects_tensors = argument
    # What is imported by name there can be here, where the same folders exist.
    sys.path.extend(path for path in sys_path if path not in sys.path and os.path.isdir(path))
    if expects_tensors:  # now, and once for all slots, rather than within the first task
        import torch  # noqa: F401
    serve_worker(spec, transport, None)


class WorkerTask:
    """A task of the level above is a run at this level. It can be cancelled at any time: then it can submit no more.

    A graph that waits for anything else than its tasks goes on: the level above ends this process after a while.
    """

    def __init__(
        self, worker: Worker, transport: Transport, tasks: dict[int, WorkerTask], number: int, *, returns_written: bool
    ) -> None:
        self._worker = worker
        self._transport = transport
        self._tasks = tasks
        self._number = number
        self._returns_written = returns_written
        self._opened: Future[RunHandle] = Future()

    def start(self, mapped: MappedStorages, digest: str, *arguments: Any) -> None:
        try:
            args, _, written = _arguments(mapped, *arguments)
            # Tasks below may write what came by value.
            args = replace(args, tensors=tuple([share(t) if is_private(t) else t for t in args.tensors]))
        except BaseException as error:
            self._fail(error)
            return
        threading.Thread(target=self._run, args=(digest, args, written), daemon=True).start()

    def _run(self, digest: str, args: SlotArgs, written: list[int]) -> None:
        returned: list[Any] = []
        try:
            orch_fn = self._worker.callables.definitions[digest].load()
            self._worker.submit(
                lambda orch, args, config: returned.append(orch_fn(orch, args, config)),
                args,
                args.config,
                _opened=self._opened.set_result,
            ).wait()
            content = [(number, to_bytes(args.tensors[number])) for number in written if self._returns_written]
            self._report(dump_result(returned[0]), None, content)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        # What has happened below is what has happened, but this task itself has run.
        below = error.record.outcome if isinstance(error, TaskError) else Outcome.TASK_FAILURE
        outcome = Outcome.TASK_FAILURE if below is Outcome.SKIPPED else below
        self._report(None, (outcome, _own_failure(error)), ())

    def _report(self, payload: bytes | None, failed: Failed | None, content: Any) -> None:
        self._tasks.pop(self._number, None)
        with contextlib.suppress(OSError):  # the level above is gone; the end of the transport ends this process
            self._transport.send(("ended", self._number, payload, failed, content))

    def cancel(self, why: str, grace: float | None = None) -> None:
        """Cancel the run now, or once it exists."""
        self._opened.add_done_callback(lambda opened: opened.result().cancel(why, running=True, grace=grace))
