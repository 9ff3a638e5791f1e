"""torch's elastic agent for the ranks of one node, which reports the states of its worker group and every exit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from pytest_aorta.launch.child.attempt_log import write_exit, write_start, write_stop
from pytest_aorta.launch.child.rank_evidence import left_early
from pytest_aorta.launch.child.rank_files import attempt_folder
from pytest_aorta.launch.child.rank_logs import RankLogs
from pytest_aorta.launch.child.torch_compat.elastic_agent import HookedAgent, ReportingAgent
from pytest_aorta.launch.diagnosis.trial_evidence import RankExit
from pytest_aorta.trials.events import AttemptReason, GroupEvent, GroupStateName, Send


class Agent(HookedAgent):
    """Starts the ranks of this node, again if need be.

    Args:
        spec: of the ranks.
        logs: where each attempt's logs go.
        grace: seconds that a rank has between SIGTERM and SIGKILL.
        send: receives a ``GroupEvent`` for every state of the worker group.
        before_restart: called when all ranks of an attempt have ended that is not the last one.
        before_look: called each time before the agent looks at its ranks.
        before_stop: called before the agent first asks ranks of an attempt to end, with the processes that still run.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs: RankLogs,
        *,
        start_method: str,
        exit_barrier_timeout: float,
        grace: float,
        send: Send,
        before_restart: Callable[[AttemptReason], None],
        before_look: Callable[[], None],
        before_stop: Callable[[dict[int, int]], None],
    ) -> None:
        self.logs = logs
        self._folder = Path(logs.root_log_dir)
        self._recorded: set[int] = set()
        self._send = send
        self._before_restart = before_restart
        self._before_look = before_look
        self._before_stop = before_stop
        super().__init__(
            spec,
            logs,
            start_method=start_method,
            exit_barrier_timeout=exit_barrier_timeout,
            stop_timeout=max(1, int(grace)),
        )

    def on_state(self, state: WorkerState) -> None:
        """Report it."""
        self._send(group_event(self, state, self.logs.attempt))

    def on_start(self) -> None:
        """Use new log files, and record which ranks c10d has given to this node."""
        self.logs.begin_attempt()
        self._recorded.clear()
        write_start(self._folder, self.logs.attempt, self.ranks(), self.world_size(), self.group_name())

    def on_look(self) -> None:
        """Record the exits since, and let the trial look as well."""
        self.record_exits()
        self._before_look()

    def on_stop(self) -> None:
        """Record who has ended by itself, and let the trial look at those that have not."""
        self.record_exits()
        with contextlib.suppress(OSError):
            write_stop(self._folder, self.logs.attempt)
        self._before_stop(self.running())

    def on_restart(self, reason: AttemptReason) -> None:
        """Let the trial report the attempt."""
        self.record_exits()
        self._before_restart(reason)

    def has_left(self, local_rank: int) -> bool:
        """Whether its event log has no end."""
        return left_early(attempt_folder(self._folder, self.logs.attempt), self.workers()[local_rank].global_rank)

    def record_exits(self) -> None:
        """Record how each rank of this attempt ended that has.

        torch itself reports one failed rank only: of two that end at once, the one whose number is lower, and so
        perhaps the peer of a crashed rank instead of that rank.
        """
        workers = self.workers()
        for local_rank, process in enumerate(self.processes()):
            if process.exitcode is None or local_rank in self._recorded:
                continue
            self._recorded.add(local_rank)
            end: RankExit = {
                "pid": process.pid,
                "exitcode": process.exitcode,
                "at": time.time(),
                "stopped": process.pid in self.stopped,
            }
            with contextlib.suppress(OSError):  # a full disk must not disturb the ranks
                write_exit(self._folder, self.logs.attempt, workers[local_rank].global_rank, end)

    def running(self) -> dict[int, int]:
        """The processes of the ranks of this attempt that have not ended, by global rank."""
        workers = self.workers()
        return {
            workers[local_rank].global_rank: process.pid
            for local_rank, process in enumerate(self.processes())
            if process.exitcode is None and process.pid is not None
        }

    def ranks(self) -> dict[int, int]:
        """Global to local ranks of this node, as of the last rendezvous."""
        return {worker.global_rank: worker.local_rank for worker in self.workers()}

    def group_name(self) -> str:
        """A name of the worker group that is the same on all its nodes: where its ranks meet."""
        return "{}:{}".format(*self.master())

    def world_size(self) -> int:
        """Ranks of all nodes, as of the last rendezvous."""
        return int(self.workers()[0].world_size)


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


def reporting_agent(send: Send) -> type[LocalElasticAgent]:
    """The agent for torchrun; it sends the states of its worker group as ``Agent`` does."""

    class TorchrunAgent(ReportingAgent):
        def on_state(self, state: WorkerState) -> None:
            send(group_event(self, state, self.restarts()))

    return TorchrunAgent
