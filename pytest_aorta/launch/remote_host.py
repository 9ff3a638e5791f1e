"""A host that execnet reaches: trials run there as on this one, and their files come home."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.bounded_waits import PIECE
from pytest_aorta.launch.environment import Inherited
from pytest_aorta.launch.host.service import HostLost, TrialHost, TrialJob, TrialOrder
from pytest_aorta.launch.launch_mode import EngineUnusable, LaunchModeError
from pytest_aorta.launch.pool import Job, Slot
from pytest_aorta.launch.workload_info import PreparedCell
from pytest_aorta.runtime.host_main import code_identity, package_files
from pytest_aorta.runtime.host_specs import without_values
from pytest_aorta.runtime.hosts import HostConnection, HostError
from pytest_aorta.runtime.resources.used_folders import UsedFolder, make_own
from pytest_aorta.trials.execution import Resources
from pytest_aorta.trials.result import TrialResult

if TYPE_CHECKING:
    from pytest_aorta.runtime.host_main import HostChannel

_SERVICE = "pytest_aorta.launch.remote_host:serve"

#: Bytes of a trial's files that travel in one message.
_CHUNK = 2**20


@dataclass(frozen=True)
class _Argument:
    resources: Resources
    hosts: int
    node_store: tuple[str, int] | None
    sys_path: tuple[str, ...]


class RemoteHost:
    """This side of a host; has the methods of a ``TrialHost``."""

    def __init__(
        self,
        spec: str,
        resources: Resources,
        hosts: int,
        node_store: tuple[str, int] | None,
        identity: Mapping[str, str],
        on_death: Callable[[HostLost], object],
    ) -> None:
        self.name = without_values(spec)
        self._lock = threading.Lock()
        self._asked: dict[int, SimpleQueue[dict[str, Any]]] = {}
        self._numbers = iter(range(sys.maxsize))
        self._death: HostError | None = None
        self._on_death = on_death
        argument = _Argument(replace(resources, hosts=()), hosts, node_store, tuple(path for path in sys.path if path))
        self._connection = HostConnection(
            spec,
            _SERVICE,
            {"argument": pickle.dumps(argument)},
            identity={**code_identity(package_files("pytest_aorta")), **identity},
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
        problem = self._ask("begin", None, None)
        if problem is not None:
            raise EngineUnusable(f"host {self.name}: {problem}")

    def importing(self, order: TrialOrder) -> None:
        """As of ``TrialHost``; nothing is known of it here."""

    def prepare(self, order: TrialOrder, slot: int, job: TrialJob) -> PreparedCell:
        """As of ``TrialHost``."""
        cell: PreparedCell = self._ask("prepare", (replace(order, folder=Path()), slot), job)
        return cell

    def run(self, order: TrialOrder, slot: int, job: TrialJob) -> TrialResult:
        """As of ``TrialHost``; the files of the trial are written into its folder here."""
        record: TrialResult = self._ask("run", (order, slot), job)
        return record

    def _ask(self, what: str, argument: Any, job: Any) -> Any:
        answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = answers
            if self._death is not None:
                answers.put({"lost": self._death})
        try:
            self._send({"id": number, "ask": what, "data": pickle.dumps(argument)})
            if job is not None:
                job.on_cancel(lambda why: self._send({"id": number, "ask": "cancel", "data": pickle.dumps(why)}))
            while "value" not in (answer := answers.get()):
                if "lost" in answer:
                    raise HostLost(str(answer["lost"]))
                if "error" in answer:
                    raise answer["error"]
                if "file" in answer:
                    _append(argument[0].folder, answer["file"], answer["bytes"])
                else:
                    getattr(job, answer["call"])(*answer["arguments"])
            return answer["value"]
        finally:
            with self._lock:
                self._asked.pop(number, None)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.send(message)
        except HostError as error:  # its death is noticed elsewhere, unless it was closed
            self._lose(error)

    def _receive(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            answers = self._asked.get(message["id"])
        if answers is not None:
            answers.put(pickle.loads(message["data"]))

    def _lose(self, error: HostError) -> None:
        self._on_death(HostLost(str(error)))
        with self._lock:
            self._death = self._death or error
            asked = list(self._asked.values())
        for answers in asked:
            answers.put({"lost": error})

    def close(self) -> None:
        """End it."""
        self._connection.close()


def start_hosts(hosts: Sequence[RemoteHost]) -> None:
    """Start all hosts at once; the first failure counts, and ends all of them."""
    with contextlib.ExitStack() as undo:
        for host in hosts:
            undo.callback(host.close)
        starting = ThreadPoolExecutor(len(hosts), "aorta-start")
        started = [starting.submit(host.start) for host in hosts]
        starting.shutdown(wait=False)
        while True:
            done, late = wait(started, PIECE, FIRST_EXCEPTION)
            for attempt in done:
                attempt.result()
            if not late:
                break
        undo.pop_all()


def _append(folder: Path, name: str, data: bytes) -> None:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        return
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def serve(argument: Mapping[str, Any], channel: HostChannel) -> None:
    """On the host: run what is asked for, each on a thread, until the other side ends."""
    given: _Argument = pickle.loads(argument["argument"])
    sys.path += [path for path in given.sys_path if path not in sys.path]
    service: _Service | None = None
    try:
        while (message := channel.receive()) is not None:
            number, data = message["id"], pickle.loads(message["data"])
            if message["ask"] == "begin":
                try:
                    service = _Service(given, channel)
                    answer: dict[str, Any] = {"value": None}
                except LaunchModeError as error:
                    answer = {"value": str(error)}
                channel.send({"id": number, "data": pickle.dumps(answer)})
            elif service is not None and message["ask"] == "cancel":
                service.cancel(number, data)
            elif service is not None:
                service.begin(number, message["ask"], *data)
    finally:
        if service is not None:
            service.close()


class _Service:
    def __init__(self, given: _Argument, channel: HostChannel) -> None:
        self.channel = channel
        self.host = TrialHost(given.resources, given.hosts, given.node_store)
        self.folder = UsedFolder(make_own)
        self.jobs: dict[int, _RemoteJob] = {}
        self.threads: list[threading.Thread] = []

    def begin(self, number: int, what: str, order: TrialOrder, slot: int) -> None:
        """Run a job on a thread."""
        order = replace(order, inherited=Inherited.now(self.folder.path, order.spec.origin))
        if what == "run":
            # The folder's name is the one that it has at home: records name files by it.
            order = replace(order, folder=Path(tempfile.mkdtemp(dir=self.folder.path)) / order.folder.name)
        self.jobs[number] = job = _RemoteJob(number, order, self)
        # A slot has one thread at a time, because its caller waits for it.
        thread = threading.Thread(target=job.run, args=(Slot(self.host, slot, ""),), daemon=True)
        self.threads = [other for other in self.threads if other.is_alive()] + [thread]
        thread.start()

    def cancel(self, number: int, why: str) -> None:
        """End a job, on a thread: it may wait for one that is being prepared."""
        job = self.jobs.get(number)
        if job is not None:
            threading.Thread(target=job.cancel, args=(why,), daemon=True).start()

    def close(self) -> None:
        """End everything."""
        for job in list(self.jobs.values()):
            job.cancel("the run has ended")
        for thread in self.threads:
            thread.join(5)
        self.host.close()
        self.folder.close()


class _RemoteJob(Job):
    def __init__(self, number: int, order: TrialOrder, service: _Service) -> None:
        super().__init__()
        self._number = number
        self._order = order
        self._service = service

    def run(self, slot: Slot) -> None:
        """Run it; the last answer has its value, or its error."""
        order = self._order
        try:
            if order.folder == Path():
                answer: dict[str, Any] = {"value": slot.host.prepare(order, slot.index, self)}
            else:
                answer = {"value": slot.host.run(order, slot.index, self)}
                self._send_files(order.folder)
        except BaseException as error:
            answer = {"error": error}
        self._service.jobs.pop(self._number, None)
        self._answer(answer)

    def give_up(self, error: Exception | None = None) -> None:
        """Never: it begins at once."""

    def phase_ended(self, phase: str, failed: bool) -> None:
        """As of ``SlotTrial``."""
        self._answer({"call": "phase_ended", "arguments": (phase, failed)})

    def warn(self, text: str) -> None:
        """As of ``SlotTrial``."""
        self._answer({"call": "warn", "arguments": (text,)})

    def packages_listed(self, listing: dict[str, Any]) -> None:
        """As of ``SlotTrial``."""
        self._answer({"call": "packages_listed", "arguments": (listing,)})

    def _send_files(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                name = path.relative_to(folder).as_posix()
                with path.open("rb") as file:
                    while True:
                        data = file.read(_CHUNK)
                        self._answer({"file": name, "bytes": data})
                        if len(data) < _CHUNK:
                            break

    def _answer(self, answer: dict[str, Any]) -> None:
        try:
            data = pickle.dumps(answer)
        except Exception as error:  # an exception that cannot be pickled
            data = pickle.dumps({"error": RuntimeError(f"{type(error).__name__}: {answer.get('error', error)}")})
        try:
            self._service.channel.send({"id": self._number, "data": data})
        except OSError:
            os._exit(1)  # the other side is gone
