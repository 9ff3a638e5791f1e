"""torch's elastic agent with a recorder of its ranks; the one module that uses private names of the agent."""

from __future__ import annotations

import contextlib
import inspect
import logging
import signal
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch.distributed.elastic import multiprocessing
from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import (
    LogsDest,
    LogsSpecs,
    MultiprocessContext,
    PContext,
    RunProcsResult,
    Std,
    SubprocessContext,
    to_map,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.utils import _delay
from torch.distributed.launcher import api as launcher_api

from pytest_aorta.launch.child.rank_files import (
    attempt_evidence,
    attempt_folder,
    begin_log,
    event_log,
    keep_evidence,
    read_log,
    read_new,
    read_rank,
    save_collectives,
    write_exit,
    write_start,
    write_stop,
)
from pytest_aorta.launch.child.rendezvous import NodeExchange
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, AttemptEvidence, Launcher, RankEvidence, RankExit
from pytest_aorta.launch.diagnosis.judge import attempt_event, is_about_a_missing_rank
from pytest_aorta.runtime.process_tree import native_threads, request_stacks
from pytest_aorta.trials.execution import ElasticOptions
from pytest_aorta.trials.records import AttemptReason, GroupState, GroupStateName, Send

if TYPE_CHECKING:
    from pytest_aorta.launch.launch_mode import ChildArgument

_log = logging.getLogger(__name__)

#: Variable with the number of the attempt, for ranks of a workload.
ATTEMPT = "AORTA_ATTEMPT"

#: Seconds in which most ranks exit once they are done.
_AT_ONCE = 0.5

#: Seconds between two looks of the agent at its ranks.
MONITOR_INTERVAL = 0.01


class RankRecorder(LogsSpecs):
    """Records what the agent of this process sees of its ranks, attempt by attempt, and sends events to the host.

    It also chooses the paths of their logs, in a folder per attempt. torch itself numbers attempts by restarts, and
    overwrites the logs of an attempt that a membership change has ended.

    Args:
        payload: of the trial.
        launcher: ranks of a ``script`` write no event logs; their armed processes tell what becomes of them.
        options: ``redirects`` and ``tee``.
        send: takes events.
        relays: whether ranks are fresh interpreters; then say when the first has done its imports, and send rank 0's
        events.
        exchange: with other nodes.
        watch: called with the number of the attempt each time the agent looks at its ranks.
    """

    def __init__(
        self,
        payload: ChildArgument,
        launcher: Launcher,
        options: ElasticOptions,
        send: Send,
        *,
        relays: bool = True,
        exchange: NodeExchange | None = None,
        watch: Callable[[int], object] | None = None,
    ) -> None:
        self._streams = Std.from_str(options.redirects), Std.from_str(options.tee)
        super().__init__(payload["folder"], *self._streams)
        self.folder, self.sockets = Path(payload["folder"]), Path(payload["sockets"])
        self.launcher: Launcher = launcher
        self.stop_timeout = max(1.0, payload["grace"])
        self._source, self.send, self._exchange, self._watch = payload["source"], send, exchange, watch
        self._relays = relays
        #: Bytes of the first rank's event log that were sent.
        self._sent = 0
        #: Number of the attempt that runs, from 0; -1 before the first.
        self.attempt = -1
        #: Local to global ranks of this node.
        self.ranks: dict[int, int] = {}
        #: Name of the worker group, equal on all its nodes: the address where its ranks meet.
        self.group = ""
        #: Process ids of the ranks that have not ended.
        self.running: dict[int, int] = {}
        #: When this was made, when the first attempt had done its imports, and when the last attempt was started.
        self.made, self.ready, self._started = time.monotonic(), None if relays else 0.0, 0.0
        if relays:
            send({"type": "ranks_start"})

    @property
    def root_log_dir(self) -> str:
        return str(self.folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Prepare the logs of ranks that are about to be started; ``envs``: their variables, by local rank."""
        self.attempt += 1
        self._sent, self.ranks, self.group = 0, {}, f"{envs[0]['MASTER_ADDR']}:{envs[0]['MASTER_PORT']}"
        self._started = time.time()
        folder = attempt_folder(self.folder, self.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        redirects, tee = to_map(self._streams[0], len(envs)), to_map(self._streams[1], len(envs))
        logs = LogsDest()
        for local_rank, env in envs.items():
            self.ranks[local_rank] = int(env["RANK"])
            base, to_file = f"{folder}/rank_{env['RANK']}", redirects[local_rank] | tee[local_rank]
            logs.stdouts[local_rank] = f"{base}.stdout.log" if Std.OUT in to_file else ""
            logs.stderrs[local_rank] = f"{base}.stderr.log" if Std.ERR in to_file else ""
            if Std.OUT in tee[local_rank]:
                logs.tee_stdouts[local_rank] = f"{base}.stdout.log"
            if Std.ERR in tee[local_rank]:
                logs.tee_stderrs[local_rank] = f"{base}.stderr.log"
            logs.error_files[local_rank] = env["TORCHELASTIC_ERROR_FILE"] = f"{base}.error.json"
            if self.launcher != "script":
                env[ATTEMPT] = str(self.attempt)
        write_start(folder, self.ranks, int(envs[0]["WORLD_SIZE"]), self.group)
        # A thread of a library may hold a lock that forked ranks would never get. Threads of Python's own are those of
        # torch's agent, which keep a rendezvous alive, copy logs, or read a watchdog's pipe: they look up no names.
        if not self._relays and (native := native_threads()) > 0:
            raise RuntimeError(
                f"the agent has {native} thread(s) that a library has started: ranks that it forks could hang; "
                "--aorta-elastic start_method=spawn starts them afresh"
            )
        return logs

    def started(self, pids: Mapping[int, int]) -> None:
        """Note that the processes of all local ranks run."""
        self.running = {self.ranks[local_rank]: pid for local_rank, pid in pids.items()}
        if self.launcher == "script":
            for rank, pid in self.running.items():
                begin_log(attempt_folder(self.folder, self.attempt), rank, pid)
            if self.ready is None:
                self.ready = time.monotonic()
                self.send({"type": "ranks_ready"})
            self.send({"type": "end", "phase": "setup", "sec": self.ready - self.made})
            self.send({"type": "begin", "phase": "run"})

    def watch(self) -> None:
        """Called before the agent looks at its ranks."""
        self.forward()
        if self._exchange is not None and self._exchange.is_asked(self.group):  # by node 0, whose ranks have ended
            self.take_stacks()
            self._exchange.answer(self.evidence(), still_running=True)

    def forward(self) -> None:
        """Send on what the ranks have said since the last call."""
        if self.attempt >= 0 and self._watch is not None:
            self._watch(self.attempt)
        if self.attempt < 0 or not self._relays or self.launcher == "script":
            return
        folder = attempt_folder(self.folder, self.attempt)
        for rank in self.ranks.values() if self.ready is None else ():
            events = read_log(event_log(folder, rank)) or ()
            if self.ready is None and any(
                event["type"] == "begin" and event["phase"] in ("setup", "run") for event in events
            ):
                self.ready = time.monotonic()
                self.send({"type": "ranks_ready"})
        events, self._sent = read_new(event_log(folder, self.ranks[0]), self._sent)
        for event in events:
            self.send(event)

    def look(self, codes: Mapping[int, int | None], *, stopped: bool) -> set[int]:
        """Record the ranks that have ended; returns the local ranks that left with exit code 0 before they were done.

        ``stopped``: whether the agent had asked the running ranks to end.

        torch itself reports one failed rank only. If two end at once, it is the lower one, which may be the peer of the
        rank that has crashed.
        """
        left, folder = set(), attempt_folder(self.folder, self.attempt)
        for local_rank, code in codes.items():
            rank = self.ranks[local_rank]
            if code is None or rank not in self.running:
                continue
            now = time.time()
            end = RankExit(code, self.running.pop(rank), now, now - self._started, stopped)
            write_exit(folder, rank, end)
            if self.launcher == "script":
                continue
            seen = read_rank(RankEvidence(rank), folder).seen()
            if code == 0 and not (seen.finished or seen.result is not None or seen.failures):
                left.add(local_rank)
        return left

    def stop(self) -> None:
        """Called before the running ranks are asked to end.

        Reads their flight recorders, and their stacks if these can show for which rank the others have waited.
        """
        write_stop(attempt_folder(self.folder, self.attempt), time.time())
        save_collectives(self.folder, self.sockets)
        if is_about_a_missing_rank(self.evidence()):
            request_stacks(self.running.values())

    def take_stacks(self) -> None:
        """Take the stacks of the running ranks, and read their flight recorders."""
        save_collectives(self.folder, self.sockets)
        request_stacks(self.running.values())

    def evidence(self, agent: AgentEnd | None = None) -> AttemptEvidence:
        return attempt_evidence(self.folder, max(0, self.attempt), self.launcher, self._source, agent=agent)

    def on_restart(self, reason: AttemptReason) -> None:
        """Called when all ranks of an attempt have ended and will be started again."""
        self.forward()
        trial = self.evidence()
        if self._exchange is not None:
            trial = self._exchange.share(trial, last=False)
        keep_evidence(self.folder, trial)
        self.send(attempt_event(trial, reason))


class _ObservedGroup(WorkerGroup):
    """A worker group that reports the changes of its state."""

    def __setattr__(self, name: str, value: Any) -> None:
        changed = name == "state" and value is not getattr(self, "state", None)
        super().__setattr__(name, value)
        if changed:
            recorder, size = _Ranks.recorder, self.workers[0].world_size
            state, attempt = cast(GroupStateName, value.name), max(0, recorder.attempt)
            group = GroupState(state, time.time(), attempt, None if size == -1 else size)
            recorder.send({"type": "group", "group": group})


class ReportingAgent(LocalElasticAgent):
    """torch's elastic agent; tells the recorder of its ranks of states and restarts.

    The recorder replaces the logs that the agent is given.
    """

    def __init__(self, spec: WorkerSpec, logs_specs: LogsSpecs, *arguments: Any, **keywords: Any) -> None:
        super().__init__(spec, _Ranks.recorder, *arguments, **keywords)
        self._worker_group: WorkerGroup = _ObservedGroup(spec)

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
    """The ranks of an attempt, watched by a ``recorder``; they have ``stop_timeout`` seconds after SIGTERM."""

    recorder: ClassVar[RankRecorder]

    @abstractmethod
    def codes(self) -> dict[int, int | None]:
        """Exit codes by local rank; ``None`` for a running rank."""

    def release(self) -> None:
        """Let ranks exit that wait for the others to be done."""

    def _start(self) -> None:
        super()._start()  # type: ignore[safe-super]
        self.recorder.started(self.pids())

    def _poll(self) -> RunProcsResult | None:
        self.recorder.watch()
        codes = self.codes()
        left = self.recorder.look(codes, stopped=False)
        failures = {}
        for local_rank, pid in self.pids().items():
            code = codes[local_rank]
            if code or local_rank in left:
                failures[local_rank] = ProcessFailure(local_rank, pid, code or 0, self.error_files[local_rank])
                _log.error("failed (exitcode: %s) local_rank: %s (pid: %s)", code, local_rank, pid)
        if not failures and None in codes.values():
            self.release()
            return None
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
        super()._close(death_sig, min(timeout, self.recorder.stop_timeout))  # type: ignore[safe-super, arg-type]
        self.recorder.look(self.codes(), stopped=True)


class FunctionRanks(_Ranks, MultiprocessContext):
    """Ranks that call a function, which returns when they are done; then they wait for each other."""

    def codes(self) -> dict[int, int | None]:
        return {} if self._pc is None else {rank: each.exitcode for rank, each in enumerate(self._pc.processes)}

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


def use_recorder(recorder: RankRecorder) -> None:
    """Have agents of this process, torchrun's among them, start their ranks in front of a recorder."""
    _Ranks.recorder = recorder
    setattr(multiprocessing, "MultiprocessContext", FunctionRanks)  # noqa: B010  (mypy: no type to assign to)
    setattr(multiprocessing, "SubprocessContext", ProgramRanks)  # noqa: B010
    setattr(launcher_api, "LocalElasticAgent", ReportingAgent)  # noqa: B010  (no exported name)


# In torchrun, as a command starts it, which runs in a fork of an interpreter that has imported it.


def use_popen(popen: Callable[..., Any]) -> None:
    """Have agents of this process start programs as ranks by ``popen``, in place of ``subprocess.Popen``."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    close = subprocess_handler.SubprocessHandler.close

    def close_if_there(handler: Any, death_sig: signal.Signals | None = None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and what has forked it has yet to say so
            close(handler, death_sig)

    setattr(subprocess_handler, "Popen", popen)  # noqa: B010
    setattr(subprocess_handler.SubprocessHandler, "close", close_if_there)  # noqa: B010


def use_popen_in_agent(popen: Callable[..., Any]) -> None:
    """The same in torchrun, which is as quick as our own agent then."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    use_popen(popen)
    setattr(launcher_api, "LocalElasticAgent", _QuickAgent)  # noqa: B010
    # For the name of each caller, torch would read the source of all functions that are running.
    setattr(dynamic_rendezvous, "inspect", SimpleNamespace(stack=partial(inspect.stack, 0)))  # noqa: B010
    # Before it meets others, an agent would wait for 0 to 0.3 seconds, so that thousands do not come at once.
    setattr(dynamic_rendezvous, "_delay", _delay_only_retries)  # noqa: B010


def _delay_only_retries(seconds: float | tuple[float, float]) -> None:
    if not isinstance(seconds, tuple):
        _delay(seconds)


class _QuickAgent(LocalElasticAgent):
    """torch's elastic agent with the monitor interval of ``auto`` where the line gives none."""

    def __init__(self, spec: WorkerSpec, *arguments: Any, **keywords: Any) -> None:
        if spec.monitor_interval == launcher_api.LaunchConfig.monitor_interval:
            spec.monitor_interval = MONITOR_INTERVAL
        super().__init__(spec, *arguments, **keywords)
