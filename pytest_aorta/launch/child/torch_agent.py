"""torch's elastic agent for the ranks of one node, which tells what it does and waits for nobody too long."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from typing import Any, cast

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from pytest_aorta.launch.child.rank_logs import RankLogs
from pytest_aorta.trials.events import AttemptReason, GroupEvent, GroupStateName

Tell = Callable[[GroupEvent], object]


class ToldGroup(WorkerGroup):
    """A worker group whose states are told when they change, each with the time (seconds of ``time.time()``)."""

    def __init__(self, spec: WorkerSpec, tell: Callable[[WorkerState], None]) -> None:
        self._tell = tell
        self._state: WorkerState | None = None
        super().__init__(spec)

    @property
    def state(self) -> WorkerState:
        """As torch sets it."""
        assert self._state is not None
        return self._state

    @state.setter
    def state(self, state: WorkerState) -> None:
        changed, self._state = state is not self._state, state
        if changed:
            self._tell(state)


class Agent(LocalElasticAgent):
    """Starts the ranks of this node, again if need be, and tells of it.

    Args:
        spec: of the ranks.
        logs: where each attempt's logs go.
        grace: seconds that a rank has between SIGTERM and SIGKILL.
        tell: takes ``{"type": "group", "state", "at", "attempt", "world_size"}`` for every state of the worker group.
        before_restart: called when all ranks of an attempt have ended that is not the last one, with the reason:
            ``failure`` of a rank, or ``membership``, when a node came.
        look: called each time that the ranks are looked at.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs: RankLogs,
        *,
        start_method: str,
        exit_barrier_timeout: float,
        grace: float,
        tell: Tell,
        before_restart: Callable[[AttemptReason], None],
        look: Callable[[], None],
    ) -> None:
        super().__init__(
            spec,
            logs,
            start_method=start_method,
            exit_barrier_timeout=exit_barrier_timeout,
            shutdown_timeout=max(1, int(grace)),
        )
        self.logs = logs
        self._tell = tell
        self._before_restart = before_restart
        self._look = look
        self._stop_timeout = max(1, int(grace))
        self._told_to_end: set[int] = set()
        self._worker_group = ToldGroup(spec, self._tell_state)
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(_format_exception)

    def _tell_state(self, state: WorkerState) -> None:
        self._tell(state_event(self, state, self.logs.attempt))

    def ends(self) -> dict[int, dict[str, Any]]:
        """How each rank of this attempt ended that has, by global rank; ``told_to`` if it was because of another one.

        torch itself tells of one failed rank only: of two that end at once, the one whose number is lower, and so of
        the peer of a crashed rank instead of that rank.
        """
        return {
            self._worker_group.workers[local_rank].global_rank: {
                "pid": process.pid,
                "exitcode": process.exitcode,
                "at": time.time(),
                "told_to": process.pid in self._told_to_end,
            }
            for local_rank, process in enumerate(self._processes())
            if process.exitcode is not None
        }

    def ranks(self) -> dict[int, int]:
        """Global to local ranks of this node, as of the last rendezvous."""
        return {worker.global_rank: worker.local_rank for worker in self._worker_group.workers}

    def world_size(self) -> int:
        """Ranks of all nodes, as of the last rendezvous."""
        return int(self._worker_group.workers[0].world_size)

    def _processes(self) -> Any:
        return getattr(getattr(getattr(self, "_pcontext", None), "_pc", None), "processes", ())

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.logs.begin_attempt()
        started: dict[int, Any] = super()._start_workers(worker_group)
        context: Any = self._pcontext
        # When a rank has failed, torch gives one that ignores SIGTERM 30 seconds, twice, whatever it was asked for.
        close, join = context.close, context._pc._join_procs_with_timeout

        def close_within_grace(death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            close(death_sig, min(timeout, self._stop_timeout))

        def join_within_grace(timeout: float) -> None:
            # Those that have not ended by now have been told to.
            self._told_to_end |= {process.pid for process in self._processes() if process.exitcode is None}
            join(min(timeout, self._stop_timeout))

        context.close, context._pc._join_procs_with_timeout = close_within_grace, join_within_grace
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._look()
        context: Any = self._pcontext
        for local_rank, process in enumerate(self._processes()):
            # A rank that has ended itself with exit code 0 returns nothing, and torch would wait for that for ever.
            # In this order: what an ended process has returned is there.
            if process.exitcode == 0 and context._ret_vals[local_rank].empty():
                context._return_values.setdefault(local_rank, None)
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        # torch restarts a group that is healthy for the sake of nodes that wait to take part.
        reason: AttemptReason = "membership" if worker_group.state is WorkerState.HEALTHY else "failure"
        self._stop_workers(worker_group)
        self._before_restart(reason)
        super()._restart_workers(worker_group)


def state_event(agent: LocalElasticAgent, state: WorkerState, attempt: int) -> GroupEvent:
    """A state of an agent's worker group as data."""
    group = getattr(agent, "_worker_group", None)
    size = group.workers[0].world_size if group is not None and group.workers else -1
    return {
        "type": "group",
        "state": cast(GroupStateName, state.name),
        "at": time.time(),
        "attempt": max(0, attempt),
        "world_size": None if size == -1 else size,
    }


def telling_agent(tell: Tell) -> type[LocalElasticAgent]:
    """torch's own agent as torchrun makes it, which tells of its states as ``Agent`` does."""

    class TellingAgent(LocalElasticAgent):
        def __init__(self, spec: WorkerSpec, *arguments: Any, **keywords: Any) -> None:
            super().__init__(spec, *arguments, **keywords)
            self._worker_group = ToldGroup(spec, self._tell_state)

        def _tell_state(self, state: WorkerState) -> None:
            restarts = self._worker_group.spec.max_restarts - self._remaining_restarts
            tell(state_event(self, state, restarts))

    return TellingAgent


def _format_exception(record: logging.LogRecord) -> bool:
    """Have a failed rank logged without torch's own formatter of exceptions: it imports torch's compiler, for 0.8 s."""
    if record.exc_info:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
    return True
