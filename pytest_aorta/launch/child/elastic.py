"""Ranks started by torch's elastic agent, which runs in the trial's process.

The agent replaces signal handlers and edits ``os.environ``, which affects only this process. Importing this module
imports torch's agent, so zygotes of distributed workloads do it once for all their trials.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import SignalException

from pytest_aorta.launch.child.agent_files import use_for_rank
from pytest_aorta.launch.child.event_log import EventLogRelay, event_log
from pytest_aorta.launch.child.rank_files import ATTEMPT, attempt_folder
from pytest_aorta.launch.child.rank_logs import RankLogs
from pytest_aorta.launch.child.rank_main import run_rank
from pytest_aorta.launch.child.rank_records import records_of_attempt
from pytest_aorta.launch.child.rendezvous import rendezvous
from pytest_aorta.launch.child.store_process import close_stores
from pytest_aorta.launch.child.torch_agent import Agent
from pytest_aorta.launch.diagnosis.root_cause import attempt_event, ranks_event
from pytest_aorta.launch.nodes.addressing import endpoint, is_multi_node, node_rank
from pytest_aorta.launch.trial_payload import TrialPayload
from pytest_aorta.runtime.zygotes import process_tree
from pytest_aorta.trials.elastic_options import ElasticOptions, elastic_options
from pytest_aorta.trials.events import AttemptReason, RankData, Send

#: Seconds between two looks of the agent at its ranks.
_MONITOR_INTERVAL = 0.01


def run_elastic(payload: TrialPayload, send: Send) -> None:
    """Start the ranks, wait for them, report how they ended."""
    folder = Path(payload["folder"])
    nproc = payload["nproc"]
    options = elastic_options(payload["elastic"])
    # As torchrun does, so that a trial is the same under both, unless the variable is set.
    single_threaded = nproc > 1 and "OMP_NUM_THREADS" not in os.environ
    if single_threaded:
        os.environ["OMP_NUM_THREADS"] = "1"
    forked = options.start_method == "fork"
    logs = RankLogs(folder, options.redirects, options.tee)
    relay = EventLogRelay(send)

    def records() -> list[RankData]:
        return records_of_attempt(folder, logs.attempt, nproc, agent.exits(), local=agent.ranks())

    def before_restart(reason: AttemptReason) -> None:
        forward_events()
        send(attempt_event(logs.attempt, records(), reason))

    def forward_events() -> None:
        if not forked:  # the first rank has no channel; a forked one sends its events itself
            relay.forward(event_log(attempt_folder(folder, logs.attempt), min(agent.ranks())))

    agent = Agent(
        WorkerSpec(
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
        ),
        logs,
        start_method=options.start_method,
        exit_barrier_timeout=options.exit_barrier_timeout,
        grace=payload["grace"],
        send=send,
        before_restart=before_restart,
        before_look=forward_events,
    )
    try:
        agent.run(options.role)
    except SignalException as stop:
        # The trial is being ended, and its ranks have ended.
        signal.signal(stop.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), stop.sigval)
        raise
    close_stores()
    forward_events()
    send(ranks_event(_with_other_nodes(payload, options, agent, records())))


def _with_other_nodes(
    payload: TrialPayload, options: ElasticOptions, agent: Agent, own: list[RankData]
) -> list[RankData]:
    """On node 0, the records of all nodes' ranks; on another node, send this node's ranks to node 0."""
    if not is_multi_node(options):
        return own
    from pytest_aorta.launch.nodes.exchange import NodeExchange

    try:
        exchange = NodeExchange(*endpoint(options), options.rdzv_id or payload["trial_id"])
        if node_rank(options) == 0:
            return exchange.gather(options.nnodes[1], agent.world_size(), own)
        exchange.send(node_rank(options), own)
    except (RuntimeError, OSError) as error:  # node 0 has gone; the failures that this caused are in the records
        print(f"the other nodes cannot be asked: {error}", file=sys.stderr)
    return own


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
