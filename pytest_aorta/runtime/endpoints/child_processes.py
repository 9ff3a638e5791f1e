"""The processes below a worker: they are started, addressed and ended together."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.bounded_waits import pieces
from pytest_aorta.runtime.endpoints.device_leases import DeviceLeases
from pytest_aorta.runtime.endpoints.process_endpoint import Launch, ProcessEndpoint
from pytest_aorta.runtime.endpoints.protocol import StartupError, packed
from pytest_aorta.runtime.endpoints.zygote_link import ZygoteLink
from pytest_aorta.runtime.engine.tasks import TaskKind
from pytest_aorta.runtime.memory.wakeup import Wakeup
from pytest_aorta.runtime.resources.cores import core_shares, threads_of
from pytest_aorta.runtime.resources.devices import are_named_only, device_variables, find_devices
from pytest_aorta.runtime.zygote import ZygoteError, ZygotePool, ZygoteSpec

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.dispatcher import Dispatcher
    from pytest_aorta.runtime.memory.callables import Definition
    from pytest_aorta.runtime.worker_spec import WorkerSpec

#: Variables by which libraries learn how many threads to compute with. One that the user has set stays.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ChildProcesses:
    """All endpoints of a worker that are processes.

    Args:
        dispatcher: of the worker.
        describe: gives the specification of the worker, with all that is registered at the moment.
    """

    def __init__(self, dispatcher: Dispatcher, describe: Callable[[], WorkerSpec]) -> None:
        self._dispatcher = dispatcher
        self._describe = describe
        self._pool = ZygotePool()
        self._endpoints: list[ProcessEndpoint] = []
        self._starting: ThreadPoolExecutor | None = None
        self._leases: DeviceLeases | None = None
        #: Called when much of the memory that processes have mapped is not needed any more.
        self._many_dead: Wakeup | None = None
        # Taken now, so that the successor of a process that dies finds the same.
        self._spec = ZygoteSpec(
            command=(sys.executable,),
            environ=dict(os.environ),
            prepare="pytest_aorta.runtime.children.main:prepare",
            argument={"torch": expects_tensors()},
            run="pytest_aorta.runtime.children.main:serve",
            sys_path=tuple(entry or os.getcwd() for entry in sys.path),
            cwd=os.getcwd(),
        )

    def start(self, give_up: float) -> None:
        """Start everything at once, and wait until all is ready; raises ``StartupError``."""
        worker = self._describe()
        self._leases = leases = DeviceLeases(worker.device_ids, give_up)
        self._many_dead = Wakeup()
        self._dispatcher.loop.watch(self._many_dead.fileno(), self._release_dead)
        found = find_devices()
        slots = worker.num_sub_workers + len(worker.device_ids)
        shares = iter(_shares(slots) if are_named_only(found) else [None] * slots)
        for index in range(worker.num_sub_workers):
            launch = self._slot_launcher(next(shares), {})
            self._add(self._slot(TaskKind.SUB, index, f"sub_worker {index}", launch))
        for index, device in enumerate(worker.device_ids):
            variables = device_variables([device], found)
            launch = self._slot_launcher(next(shares), variables, leases.descriptors(device))
            self._add(self._slot(TaskKind.NEXT_LEVEL, index, f"slot {index}", launch))
        for index, (child, host) in enumerate(worker.children):
            self._add(self._child(index, child, host))
        if not self._endpoints:
            return
        # The first failure counts, even if others still start or hang: they end with the rest.
        self._starting = ThreadPoolExecutor(len(self._endpoints), "aorta-start")
        started = {self._starting.submit(_bring_up, endpoint, give_up): endpoint for endpoint in self._endpoints}
        self._starting.shutdown(wait=False)
        for seconds in pieces(max(0.0, give_up - time.monotonic()) + 1):
            done, late = wait(started, seconds, FIRST_EXCEPTION)
            if not late or any(attempt.exception() for attempt in done):
                break
        for attempt in done:
            attempt.result()
        if late:  # not even their zygote is there
            names = ", ".join(started[attempt].name for attempt in late)
            raise StartupError(f"{names}: not ready in time; startup_timeout_s is too short")

    def _add(self, endpoint: ProcessEndpoint) -> None:
        self._endpoints.append(endpoint)
        self._dispatcher.placement.add(endpoint)

    def _slot(self, kind: TaskKind, index: int, name: str, launch: Launch) -> ProcessEndpoint:
        assert self._many_dead is not None
        return ProcessEndpoint(self._dispatcher, kind, index, name, launch, many_dead=self._many_dead)

    def _child(self, index: int, child: WorkerSpec, host: str | None) -> ProcessEndpoint:
        if host is None:
            launch: Launch = self._worker_launcher(index)
        else:
            from pytest_aorta.runtime.endpoints.host_link import remote_launcher  # which loads execnet

            launch = remote_launcher(self._describe, index)
        assert self._many_dead is not None
        return ProcessEndpoint(
            self._dispatcher,
            TaskKind.JOB if child.total_slots else TaskKind.NEXT_LEVEL,
            index,
            f"child_worker {index} level={child.level}",
            launch,
            capacity=max(1, child.total_slots),
            respawn=host is None,
            cancels=True,
            many_dead=self._many_dead,
        )

    def _slot_launcher(
        self, cores: tuple[int, ...] | None, variables: Mapping[str, str], held: Sequence[int] = ()
    ) -> Launch:
        def launch(endpoint: ProcessEndpoint) -> ZygoteLink:
            worker = self._describe()
            payload = {
                "role": "slot",
                "callables": [definition.to_plain() for definition in worker.callables.definitions],
                "prepare": None if worker.prepare is None else worker.prepare.to_plain(),
                "variables": dict(variables),
            }
            return self._fork(endpoint, payload, _threads(cores), cores, held)

        return launch

    def _worker_launcher(self, index: int) -> Launch:
        def launch(endpoint: ProcessEndpoint) -> ZygoteLink:
            child, _ = self._describe().children[index]
            return self._fork(endpoint, {"role": "worker", "spec": packed(child), "variables": {}}, {})

        return launch

    def _fork(
        self,
        endpoint: ProcessEndpoint,
        payload: dict[str, Any],
        threads: Mapping[str, str],
        cores: tuple[int, ...] | None = None,
        held: Sequence[int] = (),
    ) -> ZygoteLink:
        """A fork of the zygote that was started with these variables, or is now. One process, however long it lives."""
        output = _own_output()
        try:
            zygote = self._pool.acquire(replace(self._spec, environ={**self._spec.environ, **threads}))
            if zygote.against_forking:
                reasons = "; ".join(zygote.against_forking)
                raise StartupError(f"{endpoint.name}: a process of this interpreter cannot be forked: {reasons}")
            task = zygote.start_task({**payload, "output": output}, cores=cores, descriptors=held)
            for fd in output:
                task.send_fd(fd)
        except (ZygoteError, OSError) as error:
            raise StartupError(f"{endpoint.name}: {error}") from error
        return ZygoteLink(endpoint, self._dispatcher.loop, task)

    def broadcast(self, definition: Definition) -> None:
        """Have every process load a callable; all of them, or none.

        Raises:
            RuntimeError: one could not.
        """
        done: list[ProcessEndpoint] = []
        for endpoint in self._endpoints:
            failure = endpoint.register(definition)
            if failure is not None and failure.type != "ProcessDied":  # its successor will load it when it starts
                for other in done:
                    other.unregister(definition.digest)
                raise RuntimeError(
                    f"{definition.name} is not registered: {failure.message}\n{failure.traceback}".rstrip()
                )
            done.append(endpoint)

    def withdraw(self, digest: str) -> None:
        """Have every process forget a callable."""
        for endpoint in self._endpoints:
            endpoint.unregister(digest)

    def run_ended(self) -> None:
        """Let go of the memory of the last run."""
        for endpoint in self._endpoints:
            endpoint.run_ended()

    def _release_dead(self) -> None:
        if self._many_dead is not None:
            self._many_dead.clear()
        with self._dispatcher.turn():
            for endpoint in self._endpoints:
                endpoint.release_dead()

    def close(self, grace: float) -> None:
        """End everything, all at once."""
        threads = [threading.Thread(target=endpoint.close, args=(grace,)) for endpoint in self._endpoints]
        for thread in threads:
            thread.start()
        give_up = time.monotonic() + 2 * grace + 5
        for thread in threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        self._pool.close()
        # Nothing starts any more, so these are about to end, and must do so before their channels are closed.
        if self._starting is not None:
            self._starting.shutdown(wait=True)
        for endpoint in self._endpoints:
            endpoint.join(grace)
            endpoint.forget_memory()
        if self._many_dead is not None:
            self._dispatcher.loop.unwatch(self._many_dead.fileno())
            self._many_dead = None
        if self._leases is not None:
            self._leases.release()


def expects_tensors() -> bool:
    """Whether zygotes import torch: a second once, instead of in every process."""
    return "torch" in sys.modules


def _bring_up(endpoint: ProcessEndpoint, give_up: float) -> None:
    endpoint.spawn()
    endpoint.wait_ready(give_up)


def _shares(slots: int) -> list[tuple[int, ...] | None]:
    """Cores of their own for every slot, as far as there are as many cores as slots."""
    if slots > len(os.sched_getaffinity(0)):
        return [None] * slots
    return list(core_shares(slots)) if slots else []


def _threads(cores: tuple[int, ...] | None) -> dict[str, str]:
    """As many threads as a slot has cores; one, where slots share cores."""
    count = str(threads_of(cores)) if cores else "1"
    return {name: count for name in _THREADS if name not in os.environ}


def _own_output() -> list[int]:
    """Descriptors of stdout and stderr, as far as they are open."""
    found = []
    for fd in (1, 2):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(fd)
    return found
