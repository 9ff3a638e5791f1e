"""The endpoints of a worker: their processes are started, addressed and ended together."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.bounded_waits import pieces
from pytest_aorta.runtime.endpoint import Link, Message, ProcessEndpoint, ProcessLink
from pytest_aorta.runtime.records import StartupError
from pytest_aorta.runtime.resources.cores import core_shares, threads_of
from pytest_aorta.runtime.resources.devices import (
    are_named_only,
    choose_devices,
    device_variables,
    devices_text,
    find_devices,
)
from pytest_aorta.runtime.resources.leases import LeaseCancelled, LeaseError, Leases
from pytest_aorta.runtime.scheduling import TaskKind
from pytest_aorta.runtime.zygote import Seed, ZygoteError, ZygoteSpec
from pytest_aorta.runtime.zygote_pool import ZygotePool

if TYPE_CHECKING:
    from pytest_aorta.runtime.callables import Callables, WorkerSpec
    from pytest_aorta.runtime.dispatcher import Dispatcher
    from pytest_aorta.runtime.resources.leases import Lease

#: Variables by which libraries learn how many threads to compute with. One that the user has set stays.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

#: Seconds that a start waits for devices; processes of a worker that was killed may still be ending.
PATIENCE = 5.0


class ChildProcesses:
    """All endpoints of a worker; ``describe`` gives its specification, with all that is registered at the moment."""

    def __init__(
        self, dispatcher: Dispatcher, callables: Callables, describe: Callable[[], WorkerSpec], seed: Seed | None
    ) -> None:
        self._dispatcher = dispatcher
        self._callables = callables
        self._describe = describe
        self._pool = ZygotePool(seed=seed)
        self._endpoints: list[ProcessEndpoint] = []
        self._starting: ThreadPoolExecutor | None = None
        self._lease: Lease | None = None
        # Taken now, so that the successor of a process that dies finds the same.
        self._spec = ZygoteSpec(
            command=(sys.executable,),
            environ=dict(os.environ),
            prepare="pytest_aorta.runtime.leaf:prepare",
            argument={"torch": expects_tensors()},
            run="pytest_aorta.runtime.leaf:serve",
            sys_path=tuple(entry or os.getcwd() for entry in sys.path),
            cwd=os.getcwd(),
        )

    def start(self, give_up: float) -> None:
        """Start everything at once, and wait until all is ready; raises ``StartupError``."""
        worker = self._describe()
        locks = self._lease_devices(worker.device_ids, give_up)
        found = find_devices()
        shares = _shares(worker.num_sub_workers + len(worker.device_ids), named_only=are_named_only(found))
        for index in range(worker.num_sub_workers):
            self._add_slot(TaskKind.SUB, index, f"sub_worker {index}", next(shares), {}, ())
        for index, device in enumerate(worker.device_ids):
            variables = device_variables([device], found)
            self._add_slot(TaskKind.NEXT_LEVEL, index, f"slot {index}", next(shares), variables, (locks[device],))
        for index, (child, host) in enumerate(worker.children):
            self._add_child(index, child.level, host)
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

    def _lease_devices(self, devices: Sequence[int], give_up: float) -> dict[int, int]:
        """Lease devices, all or none: their ids, each with the descriptor of its lock, which its slot keeps open.

        What this process was handed by the one that started it counts as leased.
        """
        if not devices:
            return {}
        until = min(give_up, time.monotonic() + PATIENCE)
        try:
            found = find_devices()
            if not are_named_only(found):
                choose_devices(tuple(devices), found)
            inherited = Leases(devices).inherited()
            leases = Leases([device for device in devices if device not in inherited])
            looks = itertools.count()  # at least one, however late it is
            self._lease = leases.acquire(
                len(leases.devices), cancelled=lambda: next(looks) > 0 and time.monotonic() > until
            )
        except LeaseCancelled:
            held = leases.holders() or dict.fromkeys(leases.devices, "other processes")
            holders = ", ".join(f"device {device} by {holder}" for device, holder in held.items())
            raise StartupError(
                f"device_ids {devices_text(devices)} are not free: {holders}; a device belongs to one worker at a time"
            ) from None
        except (LeaseError, OSError, ValueError) as error:
            raise StartupError(f"device_ids {devices_text(devices)}: {error}") from error
        return {**inherited, **dict(zip(self._lease.devices, self._lease.descriptors, strict=True))}

    def _add(self, endpoint: ProcessEndpoint) -> None:
        self._endpoints.append(endpoint)
        self._dispatcher.placement.add(endpoint)

    def _add_slot(
        self,
        kind: TaskKind,
        index: int,
        name: str,
        cores: tuple[int, ...] | None,
        variables: Mapping[str, str],
        held: Sequence[int],
    ) -> None:
        def launch(endpoint: ProcessEndpoint) -> Link:
            worker = self._describe()
            threads = _thread_variables(cores)
            what = (list(worker.callables.definitions.values()), worker.prepare, worker.check)
            payload = {"role": "slot", "variables": dict(variables)}
            return self._fork(endpoint, payload, what, threads=threads, cores=cores, held=held)

        deaths = self._describe().max_deaths
        self._add(ProcessEndpoint(self._dispatcher, kind, index, name, launch, self._callables, max_deaths=deaths))

    def _add_child(self, index: int, level: int, host: str | None) -> None:
        def launch(endpoint: ProcessEndpoint) -> Link:
            worker = self._describe()
            child, _ = worker.children[index]
            if host is None:
                # Of the environment that the slots below need: their zygote is a fork of this one, too.
                threads = _threads_below(child)
                return self._fork(endpoint, {"role": "worker", "unset": list(threads)}, (child,), threads=threads)
            from pytest_aorta.runtime.hosts import HostLink

            return HostLink(endpoint, host, child)

        name = f"child_worker {index} level={level}"
        deaths = self._describe().max_deaths
        endpoint = ProcessEndpoint(
            self._dispatcher,
            TaskKind.NEXT_LEVEL,
            index,
            name,
            launch,
            self._callables,
            respawn=host is None,
            cancels=True,
            max_deaths=deaths,
        )
        self._add(endpoint)

    def _fork(
        self,
        endpoint: ProcessEndpoint,
        payload: dict[str, Any],
        what: Message,
        *,
        threads: Mapping[str, str] | None = None,
        cores: tuple[int, ...] | None = None,
        held: Sequence[int] = (),
    ) -> ProcessLink:
        output = _own_output()
        ours, theirs = socket.socketpair()
        try:
            zygote = self._pool.acquire(replace(self._spec, environ={**self._spec.environ, **(threads or {})}))
            if zygote.against_forking:
                reasons = "; ".join(zygote.against_forking)
                raise StartupError(f"{endpoint.name}: a process of this interpreter cannot be forked: {reasons}")
            payload = {**payload, "output": output, "owner": os.getpid()}
            task = zygote.start_task(payload, cores=cores, descriptors=held)
            for fd in (theirs.fileno(), *output):
                task.send_fd(fd)
        except BaseException as error:
            ours.close()
            if isinstance(error, ZygoteError | OSError):
                raise StartupError(f"{endpoint.name}: {error}") from error
            raise
        finally:
            theirs.close()
        link = ProcessLink(endpoint, self._dispatcher.loop, task, ours)
        link.send(what)
        return link

    def run_ended(self) -> None:
        for endpoint in self._endpoints:
            endpoint.run_ended()

    def close(self, grace: float) -> None:
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
        if self._lease is not None:
            self._lease.release()


def expects_tensors() -> bool:
    """Whether zygotes import torch: a second once, instead of in every process."""
    return "torch" in sys.modules


def _bring_up(endpoint: ProcessEndpoint, give_up: float) -> None:
    endpoint.spawn()
    endpoint.wait_ready(give_up)


def _thread_variables(cores: tuple[int, ...] | None) -> dict[str, str]:
    count = str(threads_of(cores)) if cores else "1"
    return {name: count for name in _THREADS if name not in os.environ}


def _threads_below(worker: WorkerSpec) -> dict[str, str]:
    if worker.children:
        return next((_threads_below(child) for child, host in worker.children if host is None), {})
    named_only = not worker.device_ids or are_named_only(find_devices())
    return _thread_variables(next(_shares(worker.num_sub_workers + len(worker.device_ids), named_only=named_only)))


def _shares(slots: int, *, named_only: bool) -> Iterator[tuple[int, ...] | None]:
    if not slots or not named_only or slots > len(os.sched_getaffinity(0)):
        return itertools.repeat(None)
    return iter(core_shares(slots))


def _own_output() -> list[int]:
    found = []
    for fd in (1, 2):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(fd)
    return found
