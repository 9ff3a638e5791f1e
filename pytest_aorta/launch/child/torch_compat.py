"""Private parts of torch that launches depend on."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import Popen
from typing import Any, ClassVar, cast

import torch.distributed as dist
from torch.distributed.elastic import multiprocessing
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsSpecs, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.launcher import api as launcher

from pytest_aorta.launch.child.name_service import files_only
from pytest_aorta.runtime.process_tree import native_threads
from pytest_aorta.trials.events import AttemptReason, GroupEvent, GroupStateName


class _ObservedGroup(WorkerGroup):
    """A worker group that reports the changes of its state to its agent."""

    def __init__(self, spec: WorkerSpec, agent: ReportingAgent) -> None:
        self._agent = agent
        self._state: WorkerState | None = None
        super().__init__(spec)

    @property
    def state(self) -> WorkerState:
        assert self._state is not None
        return self._state

    @state.setter
    def state(self, state: WorkerState) -> None:
        changed, self._state = state is not self._state, state
        if changed:
            self._agent.on_state(state)


class ReportingAgent(LocalElasticAgent):
    """torch's elastic agent with a hook for the states of its worker group."""

    def __init__(self, spec: WorkerSpec, *arguments: Any, **keywords: Any) -> None:
        super().__init__(spec, *arguments, **keywords)
        self._worker_group = _ObservedGroup(spec, self)

    def on_state(self, state: WorkerState) -> None:
        """The worker group has a new state."""

    def workers(self) -> list[Worker]:
        """The ranks of this node, as of the last rendezvous."""
        workers: list[Worker] = self._worker_group.workers
        return workers

    def master(self) -> tuple[str | None, int | None]:
        """Address and port at which the ranks of all nodes meet, as of the last rendezvous."""
        return self._worker_group.master_addr, self._worker_group.master_port

    def restarts(self) -> int:
        """How often a failed rank has made the agent restart all."""
        return int(self._worker_group.spec.max_restarts - self._remaining_restarts)

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        super()._setup_local_watchdog(envs)
        watchdog: Any = self._worker_watchdog
        if watchdog is not None:
            # Newer versions have it end the agent as well, which could then neither report nor restart.
            reap, agent = watchdog._reap_worker, os.getpid()
            watchdog._reap_worker = lambda pid, number: pid == agent or reap(pid, number)

    def _log_watchdog_event(self, name: str, request: Any) -> None:
        if name == "kill worker process" and request is not None:
            self._explain_kill(request)
        super()._log_watchdog_event(name, request)

    def _explain_kill(self, request: Any) -> None:
        """Write the error file that the rank could not write."""
        context: Any = self._pcontext
        for local_rank, pid in context.pids().items():
            path = Path(context.error_files[local_rank])
            if pid == request.worker_pid and not path.exists():
                message = f"torch's watchdog has ended this rank: the time for {request.scope_id!r} was over"
                error = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
                with contextlib.suppress(OSError):
                    path.write_text(json.dumps({"message": error}))


def group_event(agent: ReportingAgent, state: WorkerState, attempt: int) -> GroupEvent:
    """A state of an agent's worker group."""
    workers = agent.workers()
    size = workers[0].world_size if workers else -1
    return {
        "type": "group",
        "state": cast(GroupStateName, state.name),
        "at": time.time(),
        "attempt": max(0, attempt),
        "world_size": None if size == -1 else size,
    }


class HookedAgent(ReportingAgent):
    """torch's elastic agent with hooks, which gives no rank more than ``stop_timeout`` seconds after SIGTERM."""

    def __init__(self, spec: WorkerSpec, logs: LogsSpecs, *, stop_timeout: int, **keywords: Any) -> None:
        if has_parameter(LocalElasticAgent.__init__, "shutdown_timeout"):  # an older torch has close()'s timeout only
            keywords["shutdown_timeout"] = stop_timeout
        super().__init__(spec, logs, **keywords)
        self._stop_timeout = stop_timeout
        #: Processes that the agent has asked to end.
        self.stopped: set[int] = set()
        self._stopping = False
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(_format_exception)

    def on_start(self) -> None:
        """The ranks are about to be started."""

    def on_look(self) -> None:
        """The agent is about to look at its ranks."""

    def on_stop(self) -> None:
        """The agent is about to ask ranks of this attempt to end, for the first time."""

    def has_left(self, local_rank: int) -> bool:
        """Whether a rank that has ended with exit code 0 was not done, so that the attempt has failed."""
        return False

    def on_restart(self, reason: AttemptReason) -> None:
        """All ranks of an attempt have ended, and will be started again."""

    def processes(self) -> list[BaseProcess]:
        """The ranks of this attempt, by local rank."""
        processes = getattr(getattr(getattr(self, "_pcontext", None), "_pc", None), "processes", ())
        return list(processes)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.on_start()
        if self._start_method == "fork":
            refuse_native_threads()
        started: dict[int, Any] = super()._start_workers(worker_group)
        context: Any = self._pcontext
        self._stopping = False
        # When a rank has failed, torch gives one that ignores SIGTERM 30 seconds, twice, whatever shutdown_timeout is.
        close, join = context.close, context._pc._join_procs_with_timeout

        def close_within_timeout(death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            self._note_stop()
            close(death_sig, min(timeout, self._stop_timeout))

        context.close = close_within_timeout
        context._pc._join_procs_with_timeout = lambda timeout: join(min(timeout, self._stop_timeout))
        for process in self.processes():
            self._note_stop_before(process)
        return started

    def _note_stop_before(self, process: BaseProcess) -> None:
        terminate = process.terminate

        def noted_terminate() -> None:
            self._note_stop()
            terminate()

        process.terminate = noted_terminate  # type: ignore[method-assign]

    def _note_stop(self) -> None:
        """Before the first signal that ends ranks which still run."""
        running = {process.pid for process in self.processes() if process.pid and process.exitcode is None}
        if running and not self._stopping:
            self._stopping = True
            self.on_stop()
            # Not those that have ended meanwhile.
            running = {process.pid for process in self.processes() if process.pid and process.exitcode is None}
            self.stopped |= running

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self.on_look()
        context: Any = self._pcontext
        for local_rank, process in enumerate(self.processes()):
            # A rank that has called sys.exit(0) returns nothing, and torch would wait for that without end.
            # In this order: what an ended process has returned is there.
            if process.exitcode == 0 and context._ret_vals[local_rank].empty():
                if local_rank not in context._return_values and self.has_left(local_rank):
                    return self._fail(local_rank, process)
                context._return_values.setdefault(local_rank, None)
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _fail(self, local_rank: int, process: BaseProcess) -> RunResult:
        """End the attempt because of a rank, as torch does where an exit code is not 0."""
        context: Any = self._pcontext
        context.close()
        failure = ProcessFailure(local_rank, process.pid or 0, 0, context.error_files[local_rank])
        return RunResult(WorkerState.FAILED, failures={self.workers()[local_rank].global_rank: failure})

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        # torch restarts a group that is healthy for the sake of nodes that wait to take part.
        reason: AttemptReason = "membership" if worker_group.state is WorkerState.HEALTHY else "failure"
        if has_parameter(LocalElasticAgent._stop_workers, "is_restart"):
            # This torch would otherwise shut down the rendezvous as well, in which the next attempt meets.
            self._stop_workers(worker_group, is_restart=True)
        else:
            self._stop_workers(worker_group)
        self.on_restart(reason)
        super()._restart_workers(worker_group)


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Whether a function of torch's takes ``name``: versions differ, and builds of one version may as well."""
    return name in inspect.signature(function).parameters


def refuse_native_threads() -> None:
    """Called before this process forks ranks: a thread of a library may hold a lock that they would never get.

    Threads of Python's own are those of torch's agent, which keep a rendezvous alive, copy logs, or read the watchdog's
    pipe: they look up no names. Agents whose workload has started threads do not fork.

    Raises:
        RuntimeError: there is one.
    """
    if (native := native_threads()) > 0:
        raise RuntimeError(
            f"the agent has {native} thread(s) that a library has started: ranks that it forks could hang; "
            "--aorta-elastic start_method=spawn starts them afresh"
        )


def _format_exception(record: logging.LogRecord) -> bool:
    """Have a failed rank logged without torch's own formatter of exceptions: it imports torch's compiler, for 0.8 s."""
    if record.exc_info:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
    return True


class HookedContext(SubprocessContext):
    """The ranks of an attempt under torchrun, with hooks; none has more than ``stop_timeout`` s after SIGTERM."""

    stop_timeout: ClassVar[float]

    def on_start(self, attempt: int) -> None:
        """The ranks are about to be started."""

    def on_started(self) -> None:
        """They have been started."""

    def on_look(self, *, stopped: bool) -> None:
        """torchrun looks at its ranks; ``stopped``: it has asked those that still ran to end."""

    def on_stop(self) -> None:
        """torchrun is about to ask the ranks that still run to end."""

    def has_left(self, local_rank: int) -> bool:
        """Whether a rank that has ended with exit code 0 was not done, so that the attempt has failed."""
        return False

    def processes(self) -> dict[int, Popen[bytes]]:
        """By local rank."""
        return {rank: handler.proc for rank, handler in self.subprocess_handlers.items()}

    def _start(self) -> None:
        self.on_start(int(self.envs[0]["TORCHELASTIC_RESTART_COUNT"]))
        super()._start()  # type: ignore[no-untyped-call]
        self.on_started()

    def _poll(self) -> Any:
        self.on_look(stopped=False)
        for local_rank, process in self.processes().items():
            if process.poll() == 0 and local_rank in self._running_local_ranks and self.has_left(local_rank):
                self._failures[local_rank] = ProcessFailure(local_rank, process.pid, 0, self.error_files[local_rank])
        return super()._poll()

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        self.on_look(stopped=False)
        if any(process.poll() is None for process in self.processes().values()):
            self.on_stop()
            self.on_look(stopped=False)
        super()._close(death_sig, min(timeout, self.stop_timeout))  # type: ignore[arg-type]  # float will do
        self.on_look(stopped=True)


def use_in_torchrun(context: type[SubprocessContext], agent: type[LocalElasticAgent] = LocalElasticAgent) -> None:
    """Have torchrun, when it runs in this process, make this agent, and start ranks in this context."""
    multiprocessing.SubprocessContext = context  # type: ignore[misc]
    setattr(launcher, "LocalElasticAgent", agent)  # noqa: B010  (no exported name)


def connect_without_name_server(host: str) -> None:
    """Have ``init_process_group()`` ask no name server where the store is at ``host``, a numeric address of this host.

    torch connects by IPv6, also to an IPv4 address, and asks libc for the name of the peer. /etc/hosts has no IPv4
    addresses in IPv6, so that each connection is a query to a name server, and one that is lost costs 5 s.
    """
    import torch.distributed as dist

    rendezvous = sys.modules["torch.distributed.rendezvous"]  # the package has a function of this name
    connect = dist.TCPStore  # type: ignore[attr-defined]

    @functools.wraps(connect, updated=())
    def store(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get("host_name", arguments[0] if arguments else None) != host:
            return connect(*arguments, **keywords)
        with files_only():
            return connect(*arguments, **keywords)

    setattr(rendezvous, "TCPStore", store)  # noqa: B010  (no exported name)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discard it, for a call that logs what does not belong into the log of a workload."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def start_worker_server(path: Path) -> None:
    """Serve torch's diagnosis of this process on a Unix socket, from a thread without the GIL.

    Does nothing where torch has no such server.

    Raises:
        RuntimeError: the socket cannot be used.
    """
    try:
        from torch._C._distributed_c10d import _WorkerServer
    except ImportError:
        return
    server = _WorkerServer(str(path))
    # Its destructor would wait for its thread, and write to the rank's log.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def serve_store(listening: socket.socket) -> dist.TCPStore:  # type: ignore[name-defined]
    """A store that serves on ``listening``, which is the store's from now on.

    Where torch's newer server cannot take a socket over (2.6), its older one serves; clients see no difference.
    """
    host, port = listening.getsockname()[:2]
    descriptor = listening.detach()
    served: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": descriptor}
    try:
        with quiet_stderr():
            return dist.TCPStore(host, port, **served)  # type: ignore[attr-defined]
    except NotImplementedError:
        return dist.TCPStore(host, port, **served, use_libuv=False)  # type: ignore[attr-defined]
