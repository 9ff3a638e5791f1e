"""A host that execnet reaches: trials run there as on this host, and their files are sent back.

Requests are ``(number, what, argument)`` with ``begin``, ``prepare``, ``run`` and ``cancel``; answers are
``(number, kind, ...)`` with ``call`` (of a method of the job), ``file`` (a piece of one), ``value`` and ``error``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_aorta.common.interrupts import PIECE
from pytest_aorta.launch.environment import Inherited, PreparedCell
from pytest_aorta.launch.host.local_host import LocalHost, Slot
from pytest_aorta.launch.job import HostLost, TrialJob
from pytest_aorta.launch.launch_mode import EngineUnusable, LaunchModeError
from pytest_aorta.runtime.hosts import HostConnection, HostError, without_values
from pytest_aorta.runtime.resources.leases import UsedFolder, make_own
from pytest_aorta.trials.execution import Resources
from pytest_aorta.trials.result import TrialResult

if TYPE_CHECKING:
    from pytest_aorta.runtime.hosts import HostChannel

#: Bytes of a trial's files that travel in one message.
_CHUNK = 2**20

#: What a ``LocalHost`` is made of.
_OfHost: TypeAlias = tuple[Resources, int, tuple[str, int] | None, int, str]


class RemoteHost:
    """This side of the connection to a host; has the methods of a ``LocalHost``."""

    def __init__(
        self,
        spec: str,
        of_host: _OfHost,
        identity: Mapping[str, str],
        on_death: Callable[[HostLost], object],
    ) -> None:
        self.name = without_values(spec)
        self._lock = threading.Lock()
        self._asked: dict[int, SimpleQueue[tuple[Any, ...]]] = {}
        self._numbers = count()
        self._death: HostError | None = None
        self._on_death = on_death
        self._connection = HostConnection(
            spec,
            "pytest_aorta.launch.remote_host:serve",
            ((replace(of_host[0], hosts=()), *of_host[1:]), [path for path in sys.path if path]),
            identity=identity,
            on_message=self._receive,
            on_death=self._lose,
        )

    def start(self) -> None:
        """Connect.

        Raises:
            EngineUnusable: it cannot be reached, runs other code, or lacks a device that is to be leased.
        """
        try:
            self._connection.start()
        except HostError as error:
            raise EngineUnusable(str(error)) from error
        try:
            self._ask("begin", None)
        except LaunchModeError as error:
            raise EngineUnusable(f"host {self.name}: {error}") from error

    def prepare_cell(self, job: TrialJob, slot: int) -> PreparedCell:
        cell: PreparedCell = self._ask("prepare", (job.asked, slot), job)
        return cell

    def run(self, job: TrialJob, slot: int) -> TrialResult:
        """As ``LocalHost.run``; also writes the files of the trial into its folder on this host."""
        record: TrialResult = self._ask("run", (job.asked, slot), job, job.folder)
        return record

    def _ask(self, what: str, argument: Any, job: Any = None, folder: Path | None = None) -> Any:
        answers: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = answers
            if self._death is not None:
                answers.put(("error", HostLost(str(self._death))))
        try:
            self._send(number, what, argument)
            if job is not None:
                job.on_cancel(lambda why: self._send(number, "cancel", why))
            while True:
                kind, *rest = answers.get()
                if kind == "value":
                    return rest[0]
                if kind == "error":
                    raise rest[0]
                if kind == "call":
                    getattr(job, rest[0])(*rest[1:])
                elif folder is not None:
                    _append(folder, *rest)
        finally:
            with self._lock:
                self._asked.pop(number, None)

    def _send(self, *message: Any) -> None:
        try:
            self._connection.send(message)
        except HostError as error:  # its death is noticed elsewhere, unless it was closed
            self._lose(error)

    def _receive(self, message: tuple[Any, ...]) -> None:
        with self._lock:
            answers = self._asked.get(message[0])
        if answers is not None:
            answers.put(message[1:])

    def _lose(self, error: HostError) -> None:
        self._on_death(HostLost(str(error)))
        with self._lock:
            self._death = self._death or error
            asked = list(self._asked.values())
        for answers in asked:
            answers.put(("error", HostLost(str(error))))

    def close(self) -> None:
        self._connection.close()


def start_hosts(hosts: Sequence[RemoteHost]) -> None:
    """Start all hosts at once; raise the first failure, and close all of them."""
    with contextlib.ExitStack() as undo:
        for host in hosts:
            undo.callback(host.close)
        starting = ThreadPoolExecutor(len(hosts), "aorta-start")
        started = [starting.submit(host.start) for host in hosts]
        starting.shutdown(wait=False)
        late = set(started)
        while late:
            done, late = wait(started, PIECE, FIRST_EXCEPTION)
            for attempt in done:
                attempt.result()
        undo.pop_all()


def _append(folder: Path, name: str, data: bytes) -> None:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        return
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def serve(argument: tuple[_OfHost, Sequence[str]], channel: HostChannel) -> None:
    """On the host: run each request on a thread of its own, until the other side ends."""
    of_host, sys_path = argument
    sys.path += [path for path in sys_path if path not in sys.path]
    number, _, _ = channel.receive() or (0, "", None)
    try:
        host = LocalHost(*of_host)
    except LaunchModeError as error:
        channel.send((number, "error", error))
        return
    channel.send((number, "value", None))
    jobs: dict[int, _RemoteJob] = {}
    with contextlib.closing(UsedFolder(make_own)) as folder:
        try:
            while (message := channel.receive()) is not None:
                number, what, given = message
                if what != "cancel":
                    asked, slot = given
                    jobs = {other: job for other, job in jobs.items() if job.thread.is_alive()}
                    jobs[number] = _RemoteJob(number, what, TrialJob(*asked), slot, host, folder.path, channel)
                elif number in jobs:  # on a thread: it may wait for a cell that is being prepared
                    threading.Thread(target=jobs[number].cancel, args=(given,), daemon=True).start()
        finally:
            for job in jobs.values():
                job.cancel("the run has ended")
            for job in jobs.values():
                job.thread.join(5)
            host.close()


class _RemoteJob(TrialJob):
    """One request, on a thread of its own. A slot has one at a time, because its caller waits for it."""

    def __init__(
        self, number: int, what: str, asked: TrialJob, slot: int, host: LocalHost, folder: Path, channel: HostChannel
    ) -> None:
        # The folder's name is the one that it has at home: records name files by it.
        own = Path(tempfile.mkdtemp(dir=folder)) / asked.folder.name if what == "run" else asked.folder
        inherited = Inherited.now(folder, asked.spec.origin)
        super().__init__(asked.spec, own, inherited, asked.timeout, asked.run_name)
        self._number = number
        self._what = what
        self._channel = channel
        self.on_packages = partial(self._answer, "call", "on_packages")
        self.thread = threading.Thread(target=self.run, args=(Slot(host, slot, ""),), daemon=True)
        self.thread.start()

    def run(self, slot: Slot) -> None:
        try:
            if self._what == "prepare":
                self._answer("value", slot.host.prepare_cell(self, slot.index))
                return
            record = slot.host.run(self, slot.index)
            self._send_files(self.folder)
            self._answer("value", record)
        except BaseException as error:
            try:
                self._answer("error", error)
            except Exception:  # it cannot be pickled
                self._answer("error", RuntimeError(f"{type(error).__name__}: {error}"))

    def phase_ended(self, phase: str, failed: bool) -> None:
        self._answer("call", "phase_ended", phase, failed)

    def warn(self, text: str) -> None:
        self._answer("call", "warn", text)

    def _send_files(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    data: bytes | None = None
                    while data is None or len(data) == _CHUNK:
                        data = file.read(_CHUNK)
                        self._answer("file", path.relative_to(folder).as_posix(), data)

    def _answer(self, *answer: Any) -> None:
        try:
            self._channel.send((self._number, *answer))
        except OSError:
            os._exit(1)  # the other side is gone
