"""What runs in the processes below a worker: a slot, which runs one task after the other, or a worker of its own.

The other side is ``endpoint``. Messages to a process: ``task``, ``cancel``, ``unmap``, ``register``, ``unregister``,
``close``; from it: ``ready`` or ``failed`` once, ``ended`` for each task, ``answer`` for each callable.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pytest_aorta.runtime.arguments import SlotArgs
from pytest_aorta.runtime.callables import Definition, dump_result, loads
from pytest_aorta.runtime.endpoint import Message, MessageSocket
from pytest_aorta.runtime.process_tree import children_of_self
from pytest_aorta.runtime.records import Outcome, TaskFailure, failure_of
from pytest_aorta.runtime.tensors import MappedStorages, from_bytes, to_bytes

if TYPE_CHECKING:
    from pytest_aorta.runtime.channel import Channel
    from pytest_aorta.runtime.handles import RunHandle
    from pytest_aorta.runtime.worker import Worker

#: Seconds that a task's end waits for forks that have neither ended, nor executed a program, nor returned. A fork that
#: is meant to live on, as a daemon is, costs its task this once.
FORK_PATIENCE = 1.0

#: Children that have ended before orphans are looked for among them, and tasks between two looks.
MANY = 256

_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT

#: For a task without arguments.
NOTHING = SlotArgs()


class Transport(Protocol):
    """How messages come from the level above: a ``MessageSocket`` of the same host, or a channel of execnet."""

    def send(self, message: Message) -> None:
        """Send; nothing happens when the level above is gone."""

    def receive(self) -> Message | None:
        """The next message; ``None`` when the level above is gone."""


def prepare(argument: dict[str, Any]) -> dict[str, Any]:
    """Once per zygote: import torch, where tensors are to be expected."""
    if argument["torch"]:
        import torch  # noqa: F401
    return {}


def serve(payload: dict[str, Any], channel: Channel) -> None:
    """Serve as a slot or as a worker until the other side closes the socket."""
    os.environ.update(payload["variables"])
    socket_fd = channel.receive_fd()
    assert socket_fd is not None
    _take_output(channel, payload["output"])
    transport = MessageSocket(socket_fd)
    mapped = MappedStorages(payload["owner"])
    spec = transport.receive()
    if spec is None:
        return
    if payload["role"] == "worker":
        serve_worker(spec[0], transport, mapped)
    else:
        SlotProcess(transport, mapped).serve(*spec)


def _take_output(channel: Channel, targets: list[int]) -> None:
    """Print where the submitter prints; its descriptors come over the channel."""
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
    mapped: MappedStorages | None,
    tensors: Any = (),
    scalars: Any = (),
    config: bytes | None = None,
    first_item: int | None = None,
    written: Any = (),
    gone: Any = (),
) -> tuple[SlotArgs, int | None, Any]:
    """What follows the digest of a ``task``: its arguments, number of its first item, numbers of written tensors."""
    if mapped is None:  # from another host: by value
        found = [from_bytes(*by_value) for by_value in tensors]
    else:
        mapped.unmap(gone)
        found = [mapped.tensor(view) for view in tensors]
    return SlotArgs(tuple(found), tuple(scalars), None if config is None else loads(config)), first_item, written


def _own_failure(error: BaseException) -> TaskFailure:
    """The exception that is being handled; its traceback begins below this module."""
    if isinstance(error, ItemError) and error.__cause__ is not None:
        return _own_failure(error.__cause__).at(f"item {error.args[0]}")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return failure_of(error, trace)


# Slots


class ItemError(Exception):
    """Raised from the exception of one item; its argument is the item's number."""


class SlotProcess:
    """Runs tasks, one at a time."""

    def __init__(self, transport: Transport, mapped: MappedStorages) -> None:
        self.transport = transport
        self.mapped = mapped
        self.callables: dict[str, Callable[[Any], Any]] = {}
        self.forks = ForkWatch()

    def serve(self, definitions: list[Definition], preparation: Definition | None) -> None:
        """Get ready, then carry out orders until the other side is gone or says so."""
        try:
            for definition in definitions:
                self.callables[definition.digest] = definition.load_task()
            if preparation is not None:
                preparation.load()()
        except BaseException as error:
            self.transport.send(("failed", _own_failure(error)))
            return
        self.transport.send(("ready",))
        orphans = Orphans()
        while (message := self.transport.receive()) is not None and message[0] != "close":
            word, *rest = message
            if word == "task":
                self.transport.send(("ended", rest[0], *self.run(*rest[1:]), ()))
                orphans.collect()
            elif word == "unmap":
                self.mapped.unmap(rest[0])
            elif word == "register":
                self.register(rest[0])
            elif word == "unregister":
                self.callables.pop(rest[0], None)
                self.transport.send(("answer", "unregistered", rest[0], None))

    def register(self, definition: Definition) -> None:
        """Load a callable; the answer says why it could not be loaded."""
        failure = None
        try:
            self.callables[definition.digest] = definition.load_task()
        except BaseException as error:
            failure = _own_failure(error)
        self.transport.send(("answer", "registered", definition.digest, failure))

    def run(self, digest: str, *arguments: Any) -> tuple[Outcome, bytes | None, TaskFailure | None]:
        """Run one task; how it ended."""
        try:
            return Outcome.SUCCESS, dump_result(self.call(digest, *arguments)), None
        except BaseException as error:
            return Outcome.TASK_FAILURE, None, _own_failure(error)

    def call(self, digest: str, *arguments: Any) -> Any:
        """What the callable returns, in this process and in no fork of it: once, or a list with one value per item."""
        try:
            function = self.callables[digest]
            args, first, _ = _arguments(self.mapped, *arguments) if arguments else (NOTHING, None, ())
            returned = function(args) if first is None else _map(function, args.config, first)
        except BaseException as error:
            self.forks.check(error.__cause__ if isinstance(error, ItemError) else error)
            raise
        self.forks.check()
        return returned


def _map(function: Any, items: Any, first: int) -> list[Any]:
    results: list[Any] = []
    try:
        for item in items:
            results.append(function(item))
    except BaseException as error:
        raise ItemError(first + len(results)) from error
    return results


class ReturnedTwice(RuntimeError):
    """A fork of a task's process has returned from the task as well."""

    def __init__(self) -> None:
        super().__init__(
            "the task has forked, and its fork has returned from the task as well; end forks with os._exit(0)"
        )


class ForkWatch:
    """Knows of forks by ``os.fork``, which ``multiprocessing`` uses, too; ``subprocess`` makes none.

    All forks of one task share the writing end of a pipe: a fork that returns writes to it, and when all have ended, or
    executed a program, it is closed.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._pipe: tuple[int, int] | None = None
        os.register_at_fork(before=self._before)

    def _before(self) -> None:
        if self._pipe is None and os.getpid() == self._pid:
            self._pipe = os.pipe2(os.O_CLOEXEC)

    def check(self, error: BaseException | None = None) -> None:
        """To be called when a task has returned, or raised ``error``.

        Raises:
            ReturnedTwice: a fork has returned as well. Does not return in the fork.
        """
        if os.getpid() != self._pid:
            self._end_fork(error)
        if self._pipe is None:
            return
        (read, write), self._pipe = self._pipe, None
        try:
            os.close(write)
            poll = select.poll()
            poll.register(read, select.POLLIN)
            if poll.poll(FORK_PATIENCE * 1000) and os.read(read, 1):
                raise ReturnedTwice
        except OSError:
            return  # the task has closed all descriptors, and ours with them
        finally:
            with contextlib.suppress(OSError):
                os.close(read)

    def _end_fork(self, error: BaseException | None) -> NoReturn:
        """A fork that calls ``sys.exit`` is over; any other one would take its parent's tasks."""
        code = 1
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            if isinstance(error, SystemExit):
                code = error.code if isinstance(error.code, int) else int(error.code is not None)
            elif self._pipe is not None:
                os.write(self._pipe[1], b"x")
        finally:
            os._exit(code & 0xFF)


class Orphans:
    """Collects orphans of tasks that have ended. This process adopts them, so that they end with it.

    Once there are many: to tell them from the children of tasks takes a while. The exit status of a process is taken
    once. That of a ``Popen``, which a later task may ask for, is left alone; that of a process that was started by
    ``os.fork`` and not waited for is lost.
    """

    def __init__(self) -> None:
        self._calls = 0

    def collect(self) -> None:
        """To be called after each task. Costs a system call where no child has ended."""
        if not _has_ended(os.P_ALL, 0):
            return
        self._calls += 1
        if self._calls % MANY == 0:
            collect_orphans()


def collect_orphans() -> None:
    """Collect children that have ended and that no ``Popen`` stands for, if there are many."""
    ended = [pid for pid in children_of_self() if _has_ended(os.P_PID, pid)]
    own = _pids_of_popen() if len(ended) >= MANY else None
    for pid in set(ended) - own if own is not None else ():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _has_ended(kind: int, pid: int) -> bool:
    try:
        return os.waitid(kind, pid, _ENDED) is not None
    except ChildProcessError:  # there is none, or another thread has collected it
        return False


def _pids_of_popen() -> set[int] | None:
    """Of processes that ``subprocess`` and ``multiprocessing`` have started; ``None`` while one is being started."""
    classes: tuple[type, ...] = (subprocess.Popen,)
    if "multiprocessing.popen_fork" in sys.modules:
        classes += (sys.modules["multiprocessing.popen_fork"].Popen,)
    # By type: what ``isinstance`` asks for may be computed by the object.
    pids = [vars(each).get("pid") for each in gc.get_objects() if issubclass(type(each), classes)]
    return None if None in pids else {pid for pid in pids if pid is not None}


# Workers


def serve_worker(packed_spec: Any, transport: Transport, mapped: MappedStorages | None) -> None:
    """Build the worker of a specification, and serve until the level above closes or goes.

    Without ``mapped``, tensors come by value, from another host.
    """
    from pytest_aorta.runtime.worker import Worker

    try:
        worker = Worker.from_spec(packed_spec)
        worker.init()
    except BaseException as error:
        transport.send(("failed", _own_failure(error)))
        return
    with worker:
        service = WorkerService(worker, transport, mapped)
        orphans = Orphans()
        transport.send(("ready",))
        while (message := transport.receive()) is not None and message[0] != "close":
            service.handle(*message)
            orphans.collect()
        service.end()


def serve_host(argument: tuple[Any, list[str], bool], transport: Transport) -> None:
    """The service on another host; ``argument``: specification, ``sys.path`` of the side that asks, torch or not."""
    spec, sys_path, expects_tensors = argument
    # What is imported by name there can be here, where the same folders exist.
    sys.path.extend(path for path in sys_path if path not in sys.path and os.path.isdir(path))
    if expects_tensors:  # now, and once for all slots, rather than within the first task
        import torch  # noqa: F401
    serve_worker(spec, transport, None)


class LeftBehind(RuntimeError):
    """A task was ended whose graph was still being built."""


class WorkerService:
    """Carries out the orders of the level above. Tasks run on threads, so that orders to cancel them are received."""

    def __init__(self, worker: Worker, transport: Transport, mapped: MappedStorages | None) -> None:
        self.worker = worker
        self.transport = transport
        self.mapped = mapped
        self.tasks: dict[int, WorkerTask] = {}

    def handle(self, word: str, *rest: Any) -> None:
        """Carry out one order."""
        if word == "task":
            self.start_task(*rest)
        elif word == "cancel":
            task = self.tasks.get(rest[0])
            if task is not None:
                task.cancel(rest[1])
        elif word == "unmap":
            assert self.mapped is not None
            self.mapped.unmap(rest[0])
        else:
            # As long as a process below runs a task, this waits for it; orders to cancel must be received meanwhile.
            target = self.register if word == "register" else self.unregister
            threading.Thread(target=target, args=rest, daemon=True).start()

    def register(self, definition: Definition) -> None:
        """Take a callable in, at this level and below."""
        failure = None
        try:
            self.worker.accept(definition)
        except BaseException as error:
            failure = _own_failure(error)
        self.transport.send(("answer", "registered", definition.digest, failure))

    def unregister(self, digest: str) -> None:
        """Forget a callable, at this level and below."""
        self.worker.withdraw(digest)
        self.transport.send(("answer", "unregistered", digest, None))

    def start_task(self, number: int, digest: str, *arguments: Any) -> None:
        """Run a task on a thread. Its arguments are read here: later orders may unmap their memory."""
        try:
            args, _, written = _arguments(self.mapped, *arguments)
        except BaseException as error:
            self.report(number, error)
            return
        task = self.tasks[number] = WorkerTask(self, number)
        threading.Thread(target=task.run, args=(digest, args, written), daemon=True).start()

    def report(self, number: int, error: BaseException | None, payload: bytes | None = None, written: Any = ()) -> None:
        """A task has ended."""
        self.tasks.pop(number, None)
        with contextlib.suppress(OSError):  # the level above is gone; the end of the transport ends this process
            if error is None:
                self.transport.send(("ended", number, Outcome.SUCCESS, payload, None, written))
            else:
                self.transport.send(("ended", number, Outcome.TASK_FAILURE, None, _own_failure(error), ()))

    def end(self) -> None:
        """Cancel what still runs: its results are not wanted any more."""
        for task in list(self.tasks.values()):
            task.cancel("the worker is closed")


class WorkerTask:
    """A task of the level above is a run at this level, which can be ended at any time.

    A builder that waits for tasks of its run goes on when these are cancelled, and finds that it can submit no more.
    One that waits for anything else is left behind after the worker's grace: its thread lives until it returns, but the
    task has ended, and the next graph can be built.
    """

    def __init__(self, service: WorkerService, number: int) -> None:
        self._service = service
        self._number = number
        self._lock = threading.Lock()
        self._why: str | None = None
        self._handle: RunHandle | None = None
        self._abandon: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None
        self._built = False
        self._left_behind = False

    def run(self, digest: str, args: SlotArgs, written: list[int]) -> None:
        """Build and run the graph, and report how it ended."""
        worker = self._service.worker
        try:
            orch_fn = worker.callables.definitions[digest].load()
            returned: list[Any] = []
            try:
                handle = worker.submit_below(
                    lambda orch, args, config: returned.append(orch_fn(orch, args, config)), args, self._opened
                )
            finally:
                with self._lock:
                    self._built = True
                    if self._timer is not None:
                        self._timer.cancel()
            if self._left_behind:
                return  # it was reported then
            handle.wait()
            by_value = self._service.mapped is None
            content = [(number, to_bytes(args.tensors[number])) for number in written] if by_value else ()
            self._service.report(self._number, None, dump_result(returned[0]), content)
        except BaseException as error:
            if not self._left_behind:
                self._service.report(self._number, error)

    def _opened(self, handle: RunHandle, abandon: Callable[[], None]) -> None:
        with self._lock:
            self._handle, self._abandon = handle, abandon
            why = self._why
        if why is not None:
            handle.cancel(why, running=True)

    def cancel(self, why: str) -> None:
        """End it; returns at once."""
        with self._lock:
            if self._why is None and not self._built:
                self._timer = threading.Timer(self._service.worker.grace, self._leave_behind)
                self._timer.daemon = True
                self._timer.start()
            self._why = self._why or why
            handle = self._handle
        if handle is not None:
            handle.cancel(why, running=True)

    def _leave_behind(self) -> None:
        with self._lock:
            if self._built or self._abandon is None:
                return
            self._left_behind = True
        self._abandon()
        why = f"{self._why}; its graph was still being built, which is left behind"
        self._service.report(self._number, LeftBehind(why))
