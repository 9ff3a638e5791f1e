"""The processes below a worker: started together, spoken to together, ended together."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.endpoints.process import LinkedEndpoint, StartupError, own_output
from pytest_aorta.runtime.endpoints.zygote_link import TaskLink
from pytest_aorta.runtime.engine.tasks import TaskKind
from pytest_aorta.runtime.resources.cores import core_shares, threads_of
from pytest_aorta.runtime.resources.devices import are_named_only, device_variables, find_devices
from pytest_aorta.runtime.zygotes.errors import ZygoteError
from pytest_aorta.runtime.zygotes.pool import ZygotePool
from pytest_aorta.runtime.zygotes.spec import ZygoteSpec

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.dispatcher import Dispatcher
    from pytest_aorta.runtime.memory.callables import Definition
    from pytest_aorta.runtime.worker import Worker
    from pytest_aorta.runtime.zygotes.server import Server

#: Variables by which libraries learn how many threads to compute with. Whoever sets one keeps what is set.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

#: Zygotes with different variables, one per device at most.
_MAX_ZYGOTES = 4096


class Staff:
    """All endpoints of a worker that are processes."""

    def __init__(self, engine: Dispatcher) -> None:
        self._engine = engine
        self._pool = ZygotePool(_MAX_ZYGOTES)
        self._endpoints: list[LinkedEndpoint] = []
        self._starting: ThreadPoolExecutor | None = None
        # Whoever takes a dead one's place later is to find the same.
        self._spec = ZygoteSpec(
            command=(sys.executable,),
            environ=dict(os.environ),
            prepare="pytest_aorta.runtime.children.main:prepare",
            argument={"torch": expects_tensors()},
            run="pytest_aorta.runtime.children.main:serve",
            sys_path=tuple(entry or os.getcwd() for entry in sys.path),
            cwd=os.getcwd(),
        )

    def start(self, worker: Worker, give_up: float) -> None:
        """Start everything at once, and wait until all is ready; raises ``StartupError``."""
        found = find_devices()
        slots = worker.num_sub_workers + len(worker.device_ids)
        shares = _shares(slots) if are_named_only(found) else [None] * slots
        for index in range(worker.num_sub_workers):
            launch = self._launcher(worker, shares[index], {})
            self._add(LinkedEndpoint(self._engine, TaskKind.SUB, index, f"sub_worker {index}", launch))
        for index, device in enumerate(worker.device_ids):
            variables = device_variables([device], found)
            launch = self._launcher(worker, shares[worker.num_sub_workers + index], variables)
            self._add(LinkedEndpoint(self._engine, TaskKind.NEXT_LEVEL, index, f"slot {index}", launch))
        for index, (child, host) in enumerate(worker.children):
            child._state = "ABOVE"
            child.callables.inherit(worker.callables)
            self._add(self._child(worker, index, child, host))
        if not self._endpoints:
            return
        # The first failure counts, whoever else still starts, or hangs: they end with the rest.
        self._starting = ThreadPoolExecutor(len(self._endpoints), "aorta-start")
        started = {self._starting.submit(_bring_up, endpoint, give_up): endpoint for endpoint in self._endpoints}
        self._starting.shutdown(wait=False)
        done, late = wait(started, max(0.0, give_up - time.monotonic()) + 1, FIRST_EXCEPTION)
        for attempt in done:
            attempt.result()
        if late:  # not even their zygote is there
            names = ", ".join(started[attempt].name for attempt in late)
            raise StartupError(f"{names}: not ready in time; startup_timeout_s is too short")

    def _add(self, endpoint: LinkedEndpoint) -> None:
        self._endpoints.append(endpoint)
        self._engine.placement.add(endpoint)

    def _child(self, worker: Worker, index: int, child: Worker, host: str | None) -> LinkedEndpoint:
        name = f"child_worker {index} level={child.level}"
        if host is not None:
            from pytest_aorta.runtime.endpoints.host_link import remote_launcher

            launch: Any = remote_launcher(worker, child, host)
        else:
            launch = self._worker_launcher(worker, child)
        kind = TaskKind.JOB if child.has_slots else TaskKind.NEXT_LEVEL
        return LinkedEndpoint(
            self._engine,
            kind,
            index,
            name,
            launch,
            capacity=max(1, child.total_slots),
            respawn=host is None,
            cancels=True,
        )

    def _launcher(
        self, worker: Worker, cores: tuple[int, ...] | None, variables: Mapping[str, str]
    ) -> Callable[[LinkedEndpoint], TaskLink]:
        def launch(endpoint: LinkedEndpoint) -> TaskLink:
            payload = {
                "role": "slot",
                "callables": [definition.to_plain() for definition in worker.callables.definitions.values()],
                "prepare": None if worker.prepare is None else worker.prepare.to_plain(),
            }
            return self._fork(endpoint, payload, cores, {**_threads(cores), **variables})

        return launch

    def _worker_launcher(self, worker: Worker, child: Worker) -> Callable[[LinkedEndpoint], TaskLink]:
        def launch(endpoint: LinkedEndpoint) -> TaskLink:
            from pytest_aorta.runtime.worker_spec import write_manifest  # which knows what a worker is

            child.callables.inherit(worker.callables)
            return self._fork(endpoint, {"role": "worker", "manifest": write_manifest(child)}, None, {})

        return launch

    def _fork(
        self,
        endpoint: LinkedEndpoint,
        payload: dict[str, Any],
        cores: tuple[int, ...] | None,
        variables: Mapping[str, str],
    ) -> TaskLink:
        """A process that a zygote has ready; its zygote is started, or forked, where there is none."""
        spec = replace(self._spec, environ={**self._spec.environ, **variables})
        output = own_output()
        server: Server | None = None
        try:
            server = self._pool.acquire(spec)
            if server.against_forking:
                reasons = "; ".join(server.against_forking)
                raise StartupError(f"{endpoint.name}: a process of this interpreter cannot be forked: {reasons}")
            task = server.submit({**payload, "output": output}, stdout=None, stderr=None, stacks=None, cores=cores)
            for fd in output:
                task.send_fd(fd)
        except (ZygoteError, OSError) as error:
            if server is not None:
                self._pool.release(server)
            raise StartupError(f"{endpoint.name}: {error}") from error
        return TaskLink(endpoint, self._engine.loop, self._pool, server, task)

    def broadcast(self, definition: Definition) -> None:
        """Have every process load a callable; all of them, or none.

        Raises:
            RuntimeError: one could not.
        """
        done: list[LinkedEndpoint] = []
        for endpoint in self._endpoints:
            failure = endpoint.register(definition)
            if failure is not None and failure.type != "ProcessDied":  # its successor will load it on its own
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

    def close(self, grace: float) -> None:
        """End everything, all at once."""
        threads = [threading.Thread(target=endpoint.close, args=(grace,)) for endpoint in self._endpoints]
        for thread in threads:
            thread.start()
        give_up = time.monotonic() + 2 * grace + 5
        for thread in threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        self._pool.close()
        # Nothing starts any more, so these are about to end, and must before what they speak through is closed.
        if self._starting is not None:
            self._starting.shutdown(wait=True)
        for endpoint in self._endpoints:
            endpoint.join(grace)


def expects_tensors() -> bool:
    """Whether processes import torch before they are asked to, which takes a second once instead of in every one."""
    return "torch" in sys.modules


def _bring_up(endpoint: LinkedEndpoint, give_up: float) -> None:
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
