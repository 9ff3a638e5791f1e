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

import torch
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.api import SignalException

from pytest_aorta.common.exception_text import describe_exception
from pytest_aorta.launch.child.agent_files import use_for_rank
from pytest_aorta.launch.child.event_log import EventLogRelay, event_log
from pytest_aorta.launch.child.rank_evidence import attempt_evidence, keep_evidence
from pytest_aorta.launch.child.rank_files import ATTEMPT, attempt_folder
from pytest_aorta.launch.child.rank_logs import RankLogs
from pytest_aorta.launch.child.rank_main import run_rank
from pytest_aorta.launch.child.rank_stacks import look_at_ranks, take_stacks
from pytest_aorta.launch.child.rendezvous import close_stores, rendezvous
from pytest_aorta.launch.child.torch_agent import Agent
from pytest_aorta.launch.diagnosis.judge import attempt_event, judge, ranks_event
from pytest_aorta.launch.diagnosis.trial_evidence import AgentEnd, TrialEvidence, still_running
from pytest_aorta.launch.nodes.addressing import is_multi_node, node_rank
from pytest_aorta.launch.trial_payload import TrialPayload
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.process_tree import reasons_against_forking
from pytest_aorta.trials.elastic_options import ElasticOptions, elastic_options
from pytest_aorta.trials.events import AttemptReason, Send

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
            exchange.answer(still_running(evidence()), agent.group_name())

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
    end: AgentEnd | None = None if error is None else {"name": "the agent", "returncode": None, "error": error}
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
