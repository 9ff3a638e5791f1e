"""Ranks started by torch's elastic agent, which runs in the trial's process.

The agent replaces signal handlers and edits ``os.environ``, which affects only this process. Importing this module
imports torch's agent, so zygotes of distributed workloads do it once for all their trials.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException, Std, to_map

from pytest_aorta.common.texts import describe_exception
from pytest_aorta.launch.child.attempt_files import (
    ATTEMPT,
    EventLogRelay,
    attempt_folder,
    event_log,
    keep_evidence,
)
from pytest_aorta.launch.child.rank_main import WorkloadRecorder, run_rank
from pytest_aorta.launch.child.rendezvous import close_stores, rendezvous
from pytest_aorta.launch.child.torch_compat import ReportingAgent, use_recorder
from pytest_aorta.launch.diagnosis.evidence import AgentEnd
from pytest_aorta.launch.diagnosis.judge import attempt_event, judge, ranks_event
from pytest_aorta.launch.launch_mode import TrialPayload
from pytest_aorta.launch.nodes import is_multi_node, node_rank
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.process_tree import reasons_against_forking
from pytest_aorta.trials.execution import ElasticOptions, elastic_options
from pytest_aorta.trials.records import AttemptReason, GroupState, Send

if TYPE_CHECKING:
    from pytest_aorta.launch.child.several_nodes import NodeExchange


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
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self.attempt += 1
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


class _Recorder(WorkloadRecorder):
    """Sends the events of fresh interpreters, whose first rank has no channel, and what other nodes ask for."""

    def __init__(self, payload: TrialPayload, send: Send, exchange: NodeExchange | None, *, forks: bool) -> None:
        super().__init__(payload, "elastic")
        self._send = send
        self._exchange = exchange
        self._relay = None if forks else EventLogRelay(send)

    def forward(self) -> None:
        if self._relay is not None and self.ranks:
            self._relay.forward(event_log(self.attempt_folder, self.ranks[0]))

    def watch(self) -> None:
        self.forward()
        if self._exchange is not None and self._exchange.is_asked(self.group):  # by node 0, whose ranks have ended
            self.take_stacks()
            self._exchange.answer(self.evidence(), still_running=True)

    def on_state(self, state: GroupState) -> None:
        self._send({"type": "group", "group": state})

    def on_restart(self, reason: AttemptReason) -> None:
        self.forward()
        trial = self.evidence()
        if self._exchange is not None:
            trial = self._exchange.share(trial, last=False)
        keep_evidence(self.folder, trial)
        self._send(attempt_event(trial, reason))


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
    exchange = None
    if is_multi_node(options):
        from pytest_aorta.launch.child.several_nodes import NodeExchange

        exchange = NodeExchange(options, payload["trial_id"])
    recorder = _Recorder(payload, send, exchange, forks=forked)
    use_recorder(recorder, max(1.0, payload["grace"]))
    error: dict[str, str] | None = None
    try:
        spec = WorkerSpec(
            role=options.role,
            local_world_size=nproc,
            rdzv_handler=rendezvous(options, payload["trial_id"]),
            entrypoint=rank_main if forked else fresh_rank_main,
            args=(payload, send, single_threaded, os.getpid()) if forked else (payload, os.getpid()),
            max_restarts=options.max_restarts,
            monitor_interval=options.monitor_interval or _MONITOR_INTERVAL,
            master_addr=options.master_addr,
            master_port=options.master_port,
            local_addr=options.local_addr,
        )
        barrier = options.exit_barrier_timeout
        agent = ReportingAgent(spec, logs, start_method=options.start_method, exit_barrier_timeout=barrier)
        error = reason_of(agent.run(options.role))
        recorder.forward()
    except SignalException as stop:
        close_stores()
        # The trial is being ended, and its ranks have ended.
        signal.signal(stop.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), stop.sigval)
        raise
    except Exception as raised:
        traceback.print_exc()
        error = describe_exception(raised)
    close_stores()
    trial = recorder.evidence(None if error is None else AgentEnd("the agent", error=error))
    if recorder.attempt >= 0 and exchange is not None:
        trial = exchange.share(trial)
    found = judge(trial)
    # Node 0 may have to read it when the store has gone.
    if found.failure is not None or found.cleanup is not None or node_rank(options) != 0:
        keep_evidence(folder, trial)
    send(ranks_event(found))


def _safe_to_start(options: ElasticOptions) -> ElasticOptions:
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
    # A fork server is the parent of its ranks.
    process_tree.die_with_parent(os.getppid() if payload["elastic"]["start_method"] == "forkserver" else agent)
    if not run_rank(payload, int(os.environ.pop(ATTEMPT)), prepared=False):
        os._exit(1)
