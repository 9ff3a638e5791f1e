"""torch's elastic agent for the ranks of one node, which reports the states of its worker group and every exit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from pytest_aorta.launch.child.rank_logs import RankLogs
from pytest_aorta.launch.child.rank_records import RankExit
from pytest_aorta.launch.child.torch_compat.elastic_agent import HookedAgent, ReportingAgent
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
    ) -> None:
        self.logs = logs
        self._send = send
        self._before_restart = before_restart
        self._before_look = before_look
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
        """Use new log files."""
        self.logs.begin_attempt()

    def on_look(self) -> None:
        """Let the trial look as well."""
        self._before_look()

    def on_restart(self, reason: AttemptReason) -> None:
        """Let the trial report the attempt."""
        self._before_restart(reason)

    def exits(self) -> dict[int, RankExit]:
        """How each rank of this attempt ended that has, by global rank.

        torch itself reports one failed rank only: of two that end at once, the one whose number is lower, and so
        perhaps the peer of a crashed rank instead of that rank.
        """
        workers = self.workers()
        return {
            workers[local_rank].global_rank: {
                "pid": process.pid,
                "exitcode": process.exitcode,
                "at": time.time(),
                "stopped": process.pid in self.stopped,
            }
            for local_rank, process in enumerate(self.processes())
            if process.exitcode is not None
        }

    def ranks(self) -> dict[int, int]:
        """Global to local ranks of this node, as of the last rendezvous."""
        return {worker.global_rank: worker.local_rank for worker in self.workers()}

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
