"""Ranks forked from the trial's own process, under torch's elastic agent.

The agent replaces signal handlers and edits ``os.environ``; here that is the business of one trial's process alone.
Importing this module imports torch's agent, so zygotes of distributed workloads do it once for all their trials.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException, Std
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from pytest_aorta.launch.living import live
from pytest_aorta.launch.ranks import find_log, log_name, rank_records, rank_stacks, ranks_event, teller
from pytest_aorta.runtime.processes import process_tree
from pytest_aorta.runtime.processes.task_main import arm
from pytest_aorta.trials.lifecycle import Send

#: Seconds between two looks of the agent at its ranks.
_MONITOR_INTERVAL = 0.01


def run_elastic(payload: dict[str, Any], send: Send) -> None:
    """Start the ranks, wait for them, tell how they ended. ``payload`` as in ``launch.child.run``."""
    folder = Path(payload["folder"])
    nproc = payload["nproc"]
    # As torchrun does, so that a trial is the same under both; whoever sets the variable wins.
    single_threaded = nproc > 1 and "OMP_NUM_THREADS" not in os.environ
    if single_threaded:
        os.environ["OMP_NUM_THREADS"] = "1"
    spec = WorkerSpec(
        role="aorta",
        local_world_size=nproc,
        rdzv_handler=OneHost(payload["trial_id"]),
        entrypoint=rank_main,
        args=(payload, send, single_threaded, os.getpid()),
        max_restarts=0,
        monitor_interval=_MONITOR_INTERVAL,
    )
    agent = Agent(spec, RankLogs(folder), start_method="fork", shutdown_timeout=max(1, int(payload["grace"])))
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(_format_exception)
    try:
        outcome = agent.run()
    except SignalException as stop:
        # Somebody ends this trial; its ranks are gone already.
        signal.signal(stop.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), stop.sigval)
        raise
    endings = _ends(agent)
    for rank, failure in outcome.failures.items():
        endings[rank] = {"pid": failure.pid, "exitcode": failure.exitcode, "at": failure.timestamp}
    records = rank_records(lambda rank: folder, nproc, endings, lambda rank, name: find_log(folder, rank, name))
    send(ranks_event(records))


class Agent(LocalElasticAgent):
    """torch's agent, which would wait for ever for what a rank returns that has ended itself with exit code 0."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        context: Any = self._pcontext
        processes = getattr(getattr(context, "_pc", None), "processes", ())
        for local_rank, process in enumerate(processes):
            # In this order: what an ended process has returned is there.
            if process.exitcode == 0 and context._ret_vals[local_rank].empty():
                context._return_values.setdefault(local_rank, None)
        result: RunResult = super()._monitor_workers(worker_group)
        return result


def _format_exception(record: logging.LogRecord) -> bool:
    """Have a failed rank logged without torch's own formatter of exceptions: it imports torch's compiler, for 0.8 s."""
    if record.exc_info:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
    return True


def _ends(agent: LocalElasticAgent) -> dict[int, dict[str, Any]]:
    """How each rank ended, now that all have.

    torch itself tells of one failed rank only: of two that end at once, the one whose number is lower, and so of the
    peer of a crashed rank instead of that rank.
    """
    processes = getattr(getattr(agent, "_pcontext", None), "_pc", None)
    return {
        rank: {"pid": process.pid, "exitcode": process.exitcode, "at": time.time()}
        for rank, process in enumerate(getattr(processes, "processes", ()))
        if process.exitcode is not None
    }


def rank_main(payload: dict[str, Any], send: Send, single_threaded: bool, agent: int) -> None:
    """The life of one rank, in a process that the agent forked."""
    process_tree.die_with_parent(agent)
    # A fresh interpreter, which torchrun starts, has these; the agent's own handlers raise exceptions.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if single_threaded:
        # The variable came too late for the OpenMP library, which the zygote has loaded already.
        torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    arm(rank_stacks(Path(payload["folder"]), rank))
    tell = teller(Path(payload["folder"]), rank, relay=send if rank == 0 else None)
    if not live(payload, tell):
        os._exit(1)


class OneHost(RendezvousHandler):
    """Rendezvous of a single agent: a store of its own on a free port, at once.

    torch's c10d backend first sleeps up to 0.3 s, to spread the load of many agents.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def get_backend(self) -> str:
        """Its name in logs."""
        return "aorta-one-host"

    @property
    def use_agent_store(self) -> bool:
        """The ranks bootstrap through the agent's store."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """A fresh store for every attempt."""
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo("localhost", store.port))

    def is_closed(self) -> bool:
        """Never; nobody else could join."""
        return False

    def set_closed(self) -> None:
        """Nothing to close."""

    def num_nodes_waiting(self) -> int:
        """Nobody waits."""
        return 0

    def get_run_id(self) -> str:
        """The trial's id, which ranks find in ``TORCHELASTIC_RUN_ID``."""
        return self._run_id

    def shutdown(self) -> bool:
        """Nothing to shut down."""
        return True


class RankLogs(LogsSpecs):
    """Logs of the ranks at names that can be known in advance."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), redirects=Std.ALL)
        self._folder = folder

    @property
    def root_log_dir(self) -> str:
        """The trial's artifacts folder."""
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Paths for every local rank of one attempt."""
        destination = LogsDest()
        for local_rank, env in envs.items():
            attempt, rank = int(env["TORCHELASTIC_RESTART_COUNT"]), int(env["RANK"])
            paths = {name: str(self._folder / log_name(attempt, rank, name)) for name in ("stdout", "stderr")}
            Path(paths["stdout"]).parent.mkdir(parents=True, exist_ok=True)
            destination.stdouts[local_rank] = paths["stdout"]
            destination.stderrs[local_rank] = paths["stderr"]
            destination.error_files[local_rank] = str(self._folder / f"attempt_{attempt}" / f"rank_{rank}.error.json")
        return destination
