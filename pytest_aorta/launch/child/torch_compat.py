"""Private parts of torch that launches depend on."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import signal
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import torch.distributed as dist
from torch.distributed.elastic import multiprocessing
from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import (
    MultiprocessContext,
    PContext,
    RunProcsResult,
    SubprocessContext,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.utils import _delay
from torch.distributed.launcher import api as launcher

from pytest_aorta.launch.child.attempt_files import AttemptRecorder
from pytest_aorta.runtime.process_tree import native_threads
from pytest_aorta.trials.records import AttemptReason, GroupState, GroupStateName

_log = logging.getLogger(__name__)

#: Seconds in which ranks mostly end that are done.
_AT_ONCE = 0.5

#: Seconds between two looks of an agent at its ranks.
MONITOR_INTERVAL = 0.01


class _ObservedGroup(WorkerGroup):
    """A worker group that reports the changes of its state."""

    def __init__(self, spec: WorkerSpec) -> None:
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
            workers, recorder = getattr(self, "workers", ()), _Ranks.recorder
            size = workers[0].world_size if workers else -1
            name, attempt = cast(GroupStateName, state.name), max(0, recorder.attempt)
            recorder.on_state(GroupState(name, time.time(), attempt, None if size == -1 else size))


class ReportingAgent(LocalElasticAgent):
    """torch's elastic agent, which tells the recorder of its ranks of states and restarts."""

    def __init__(self, spec: WorkerSpec, *arguments: Any, **keywords: Any) -> None:
        super().__init__(spec, *arguments, **keywords)
        self._worker_group: WorkerGroup = _ObservedGroup(spec)

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

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        # torch restarts a group that is healthy for the sake of nodes that wait to take part.
        reason: AttemptReason = "membership" if worker_group.state is WorkerState.HEALTHY else "failure"
        if "is_restart" in inspect.signature(LocalElasticAgent._stop_workers).parameters:
            # This torch would otherwise shut down the rendezvous as well, in which the next attempt meets.
            self._stop_workers(worker_group, is_restart=True)
        else:
            self._stop_workers(worker_group)
        _Ranks.recorder.on_restart(reason)
        super()._restart_workers(worker_group)


class _Ranks(PContext):
    """The ranks of an attempt, which tell a ``recorder``; none has more than ``stop_timeout`` s after SIGTERM."""

    recorder: ClassVar[AttemptRecorder]
    stop_timeout: ClassVar[float]

    @abstractmethod
    def codes(self) -> dict[int, int | None]:
        """Exit codes by local rank; ``None`` for those that run."""

    def check(self) -> None:
        """Raise if ranks must not be started."""

    def release(self) -> None:
        """Let those end that wait for the others to be done."""

    def _start(self) -> None:
        self.recorder.begin(self.envs)
        self.check()
        super()._start()  # type: ignore[safe-super]
        self.recorder.started(self.pids())

    def _poll(self) -> RunProcsResult | None:
        self.recorder.watch()
        codes = self.codes()
        ended = self.recorder.look(codes, stopped=False)
        pids = self.pids()
        failures = {
            local_rank: ProcessFailure(local_rank, pids[local_rank], code, self.error_files[local_rank])
            for local_rank, code in codes.items()
            if code is not None and (code != 0 or (local_rank in ended and self.recorder.has_left(local_rank)))
        }
        if not failures and None in codes.values():
            self.release()
            return None
        for each in failures.values():
            _log.error("failed (exitcode: %s) local_rank: %s (pid: %s)", each.exitcode, each.local_rank, each.pid)
        self.close()
        values = {} if failures else dict.fromkeys(codes)
        return RunProcsResult(values, failures, stdouts=self.stdouts, stderrs=self.stderrs)

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        codes = self.codes()
        self.recorder.look(codes, stopped=False)
        if None in codes.values():
            self.recorder.stop()
            self.recorder.look(self.codes(), stopped=False)  # those that have ended meanwhile
        # torch gives a rank that ignores SIGTERM 30 seconds.
        super()._close(death_sig, min(timeout, self.stop_timeout))  # type: ignore[safe-super, arg-type]
        self.recorder.look(self.codes(), stopped=True)


class FunctionRanks(_Ranks, MultiprocessContext):
    """Ranks that call a function, which returns when they are done; then they wait for each other."""

    def codes(self) -> dict[int, int | None]:
        return {} if self._pc is None else {rank: each.exitcode for rank, each in enumerate(self._pc.processes)}

    def check(self) -> None:
        if self.start_method == "fork":
            refuse_native_threads()

    def release(self) -> None:
        for local_rank, code in self.codes().items():
            # A rank that has called sys.exit(0) returns nothing.
            if code == 0 or not self._ret_vals[local_rank].empty():
                self._return_values[local_rank] = None
        if self._is_done() and not self._worker_finished_event.is_set():
            self._worker_finished_event.set()
            give_up = time.monotonic() + _AT_ONCE
            for process in self._pc.processes:  # type: ignore[union-attr]
                process.join(max(0.0, give_up - time.monotonic()))


class ProgramRanks(_Ranks, SubprocessContext):
    """Ranks that are programs of their own, under torchrun."""

    def codes(self) -> dict[int, int | None]:
        return {rank: handler.proc.poll() for rank, handler in self.subprocess_handlers.items()}


def use_recorder(recorder: AttemptRecorder, stop_timeout: float) -> None:
    """Have agents of this process start their ranks in front of a recorder."""
    _Ranks.recorder, _Ranks.stop_timeout = recorder, stop_timeout
    setattr(multiprocessing, "MultiprocessContext", FunctionRanks)  # noqa: B010  (mypy: no type to assign to)
    setattr(multiprocessing, "SubprocessContext", ProgramRanks)  # noqa: B010


def use_agent_in_torchrun() -> None:
    """Have torchrun, when it runs in this process, make an agent that reports."""
    setattr(launcher, "LocalElasticAgent", ReportingAgent)  # noqa: B010  (no exported name)


def use_popen_in_agent(popen: Callable[..., Any]) -> None:
    """Have agents of this process start programs as ranks by ``popen``, in place of ``subprocess.Popen``."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    setattr(subprocess_handler, "Popen", popen)  # noqa: B010
    setattr(launcher, "LocalElasticAgent", _QuickAgent)  # noqa: B010
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    # For the name of each caller, torch would read the source of all functions that are running.
    setattr(dynamic_rendezvous, "inspect", _Callers)  # noqa: B010
    # Before it meets others, an agent would wait for 0 to 0.3 seconds, so that thousands do not come at once.
    setattr(dynamic_rendezvous, "_delay", _delay_only_retries)  # noqa: B010


def _delay_only_retries(seconds: float | tuple[float, float]) -> None:
    if not isinstance(seconds, tuple):
        _delay(seconds)


class _QuickAgent(LocalElasticAgent):
    """torch's elastic agent with the monitor interval of ``auto`` where the line gives none."""

    def __init__(self, spec: WorkerSpec, *arguments: Any, **keywords: Any) -> None:
        if spec.monitor_interval == launcher.LaunchConfig.monitor_interval:
            spec.monitor_interval = MONITOR_INTERVAL
        super().__init__(spec, *arguments, **keywords)


class _Callers:
    """What torch's rendezvous uses of ``inspect``."""

    @staticmethod
    def stack() -> list[inspect.FrameInfo]:
        frames, frame = [], inspect.currentframe()
        while frame is not None and (frame := frame.f_back) is not None:
            code = frame.f_code
            frames.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        return frames


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
