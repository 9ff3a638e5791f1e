"""Ranks started by torch's elastic agent, which runs in the trial's process.

The agent replaces signal handlers and edits ``os.environ``, which affects only this process. Importing this module
imports torch's agent, so zygotes of distributed workloads do it once for all their trials.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException, Std, to_map

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.child.attempt_files import (
    ATTEMPT,
    EventLogRelay,
    attempt_evidence,
    attempt_folder,
    event_log,
    keep_evidence,
    left_early,
    use_for_rank,
    write_exit,
    write_start,
    write_stop,
)
from pytest_aorta.launch.child.rank_main import look_at_ranks, run_rank, take_stacks
from pytest_aorta.launch.child.rendezvous import close_stores, rendezvous
from pytest_aorta.launch.child.torch_compat import HookedAgent, group_event
from pytest_aorta.launch.diagnosis.evidence import AgentEnd, RankExit, TrialEvidence
from pytest_aorta.launch.diagnosis.judge import attempt_event, judge, ranks_event
from pytest_aorta.launch.launch_mode import TrialPayload
from pytest_aorta.launch.nodes.addressing import is_multi_node, node_rank
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.process_tree import reasons_against_forking
from pytest_aorta.trials.events import AttemptReason, Send
from pytest_aorta.trials.execution import ElasticOptions, elastic_options


class RankLogs(LogsSpecs):
    """Logs of the ranks at names that are known in advance, with a folder for each attempt.

    torch numbers attempts by restarts, and writes over the logs of an attempt that a membership change has ended.
    """

    def __init__(self, folder: Path, redirects: str, tee: str) -> None:
        self._streams = Std.from_str(redirects), Std.from_str(tee)
        super().__init__(str(folder), redirects=self._streams[0], tee=self._streams[1])
        self._folder = folder
        #: Number of the attempt that runs, from 0; -1 before the first.
        self.attempt = -1

    @property
    def root_log_dir(self) -> str:
        """The trial's artifacts folder."""
        return str(self._folder)

    def begin_attempt(self) -> None:
        """Use the folder of the next attempt."""
        self.attempt += 1

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Paths for every local rank of one attempt."""
        folder = attempt_folder(self._folder, self.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        redirects, tee = (to_map(streams, len(envs)) for streams in self._streams)
        destination = LogsDest()
        for local_rank, env in envs.items():
            base = folder / f"rank_{env['RANK']}"
            to_file = redirects[local_rank] | tee[local_rank]
            destination.stdouts[local_rank] = f"{base}.stdout.log" if Std.OUT in to_file else ""
            destination.stderrs[local_rank] = f"{base}.stderr.log" if Std.ERR in to_file else ""
            if Std.OUT in tee[local_rank]:
                destination.tee_stdouts[local_rank] = f"{base}.stdout.log"
            if Std.ERR in tee[local_rank]:
                destination.tee_stderrs[local_rank] = f"{base}.stderr.log"
            destination.error_files[local_rank] = env["TORCHELASTIC_ERROR_FILE"] = f"{base}.error.json"
            env[ATTEMPT] = str(self.attempt)
        return destination


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
            end = RankExit(process.exitcode, process.pid, time.time(), stopped=process.pid in self.stopped)
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


#: Seconds between two looks of the agent at its ranks.
_MONITOR_INTERVAL = 0.01


def run_elastic(payload: TrialPayload, send: Send) -> None:
    """Start the ranks, wait for them, report how they ended."""
    folder = Path(payload["folder"])
    nproc = payload["nproc"]
    options = _safe_to_start(elastic_options(payload["elastic"]))
    # As torchrun does, so that a trial is the same under both, unless the variable is set.
    single_threaded = nproc > 1 and "OMP_NUM_THREADS" not in os.environ
    if single_threaded:
        os.environ["OMP_NUM_THREADS"] = "1"
    forked = options.start_method == "fork"
    logs = RankLogs(folder, options.redirects, options.tee)
    relay = EventLogRelay(send)

    exchange = None
    if is_multi_node(options):
        from pytest_aorta.launch.child.several_nodes import NodeExchange, rendezvous_of_nodes

        exchange = NodeExchange(options, payload["trial_id"])

    def evidence(agent_end: AgentEnd | None = None) -> TrialEvidence:
        return attempt_evidence(folder, max(0, logs.attempt), "elastic", payload["source"], agent=agent_end)

    def before_restart(reason: AttemptReason) -> None:
        forward_events()
        trial = evidence()
        if exchange is not None:
            trial = exchange.share(trial, agent.group_name(), last=False)
        keep_evidence(folder, trial)
        send(attempt_event(trial, reason))

    def forward_events() -> None:
        if not forked:  # the first rank has no channel; a forked one sends its events itself
            relay.forward(event_log(attempt_folder(folder, logs.attempt), min(agent.ranks())))

    def before_look() -> None:
        forward_events()
        if exchange is not None and exchange.is_asked(agent.group_name()):  # by node 0, whose ranks have ended
            take_stacks(agent.running(), attempt_folder(folder, logs.attempt), Path(payload["sockets"]))
            exchange.answer(evidence().own_ranks(still_running=True), agent.group_name())

    def before_stop(running: dict[int, int]) -> None:
        look_at_ranks(evidence(), running, attempt_folder(folder, logs.attempt), Path(payload["sockets"]))

    error: dict[str, str] | None = None
    try:
        agent = Agent(
            WorkerSpec(
                role=options.role,
                local_world_size=nproc,
                rdzv_handler=(rendezvous if exchange is None else rendezvous_of_nodes)(options, payload["trial_id"]),
                entrypoint=rank_main if forked else fresh_rank_main,
                args=(payload, send, single_threaded, os.getpid()) if forked else (payload, os.getpid()),
                max_restarts=options.max_restarts,
                monitor_interval=options.monitor_interval or _MONITOR_INTERVAL,
                master_addr=options.master_addr,
                master_port=options.master_port,
                local_addr=options.local_addr,
            ),
            logs,
            start_method=options.start_method,
            exit_barrier_timeout=options.exit_barrier_timeout,
            grace=payload["grace"],
            send=send,
            before_restart=before_restart,
            before_look=before_look,
            before_stop=before_stop,
        )
        error = reason_of(agent.run(options.role))
        agent.record_exits()
        forward_events()
    except SignalException as stop:
        close_stores()
        # The trial is being ended, and its ranks have ended.
        signal.signal(stop.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), stop.sigval)
        raise
    except Exception as raised:
        traceback.print_exc()
        error = describe_exception(raised)
        if logs.attempt >= 0:
            agent.record_exits()
    close_stores()
    end = None if error is None else AgentEnd("the agent", error=error)
    trial = evidence(end)
    if logs.attempt >= 0 and exchange is not None:
        trial = exchange.share(trial, agent.group_name())
    found = judge(trial)
    # Node 0 may have to read it when the store has gone.
    if found.failure is not None or found.cleanup is not None or node_rank(options) != 0:
        keep_evidence(folder, trial)
    send(ranks_event(found))


def _safe_to_start(options: ElasticOptions) -> ElasticOptions:
    """With fresh interpreters for the ranks if this process has threads whose locks forked ones would never get."""
    if options.start_method == "fork" and (reasons := reasons_against_forking()):
        print(
            f"importing the workload {', '.join(reasons)}: its ranks start as with start_method=spawn", file=sys.stderr
        )
        return replace(options, start_method="spawn")
    return options


def reason_of(result: RunResult | None) -> dict[str, str] | None:
    """Why an agent has ended, as an error, where no rank has failed and none is done."""
    if result is None:
        return {"type": "RendezvousGracefulExitError", "message": "its rendezvous was closed before it could take part"}
    if result.state is WorkerState.UNHEALTHY or (result.state is WorkerState.FAILED and not result.failures):
        return {"type": "UnhealthyRanks", "message": "a rank is stuck in uninterruptible sleep (D-state)"}
    return None


def rank_main(payload: TrialPayload, send: Send, single_threaded: bool, agent: int) -> None:
    """A rank in a process that the agent forked."""
    process_tree.die_with_parent(agent)
    use_for_rank(payload["sockets"])
    # As in the fresh interpreters that torchrun starts; the agent's handlers raise exceptions.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if single_threaded:
        # The variable came too late for the OpenMP library, which the zygote has loaded already.
        torch.set_num_threads(1)
    if not run_rank(payload, int(os.environ.pop(ATTEMPT)), relay=send):
        os._exit(1)


def fresh_rank_main(payload: TrialPayload, agent: int) -> None:
    """A rank in a fresh interpreter (``start_method`` spawn or forkserver), which has to import the workload."""
    # A fork server is the parent of its ranks.
    process_tree.die_with_parent(os.getppid() if payload["elastic"]["start_method"] == "forkserver" else agent)
    if not run_rank(payload, int(os.environ.pop(ATTEMPT)), prepared=False):
        os._exit(1)
