"""torch's elastic agent with hooks."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsSpecs
from torch.distributed.launcher import api as launcher

from pytest_aorta.trials.events import AttemptReason


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


class HookedAgent(ReportingAgent):
    """torch's elastic agent with hooks, which gives no rank more than ``stop_timeout`` seconds after SIGTERM."""

    def __init__(self, spec: WorkerSpec, logs: LogsSpecs, *, stop_timeout: int, **keywords: Any) -> None:
        if has_parameter(LocalElasticAgent.__init__, "shutdown_timeout"):  # an older torch has close()'s timeout only
            keywords["shutdown_timeout"] = stop_timeout
        super().__init__(spec, logs, **keywords)
        self._stop_timeout = stop_timeout
        #: Processes that the agent has asked to end.
        self.stopped: set[int] = set()
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(_format_exception)

    def on_start(self) -> None:
        """The ranks are about to be started."""

    def on_look(self) -> None:
        """The agent is about to look at its ranks."""

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
        # When a rank has failed, torch gives one that ignores SIGTERM 30 seconds, twice, whatever shutdown_timeout is.
        close, join = context.close, context._pc._join_procs_with_timeout

        def close_within_timeout(death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            close(death_sig, min(timeout, self._stop_timeout))

        def join_within_timeout(timeout: float) -> None:
            # By now torch has signalled all that still run.
            self.stopped |= {process.pid for process in self.processes() if process.pid and process.exitcode is None}
            join(min(timeout, self._stop_timeout))

        context.close, context._pc._join_procs_with_timeout = close_within_timeout, join_within_timeout
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self.on_look()
        context: Any = self._pcontext
        for local_rank, process in enumerate(self.processes()):
            # A rank that has called sys.exit(0) returns nothing, and torch would wait for that without end.
            # In this order: what an ended process has returned is there.
            if process.exitcode == 0 and context._ret_vals[local_rank].empty():
                context._return_values.setdefault(local_rank, None)
        result: RunResult = super()._monitor_workers(worker_group)
        return result

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
    """Called before this process forks ranks: one of its threads may hold a lock that they would never get.

    Threads of Python's own are no danger: they hold the locks of Python objects only, and Python minds those.

    Raises:
        RuntimeError: a thread was started by a library.
    """
    native = len(os.listdir("/proc/self/task")) - threading.active_count()
    if native > 0:
        names = sorted(
            Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")
        )
        raise RuntimeError(
            f"the agent has {native} thread(s) that a library has started, among {', '.join(names)}: "
            "ranks that it forks may hang; elastic option start_method=spawn starts them afresh"
        )


def _format_exception(record: logging.LogRecord) -> bool:
    """Have a failed rank logged without torch's own formatter of exceptions: it imports torch's compiler, for 0.8 s."""
    if record.exc_info:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
    return True


def use_agent_in_torchrun(agent: type[LocalElasticAgent]) -> None:
    """Have torchrun, when it runs in this process, make this agent instead of its own."""
    setattr(launcher, "LocalElasticAgent", agent)  # noqa: B010  (no exported name)
