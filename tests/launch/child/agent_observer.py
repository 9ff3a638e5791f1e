"""Runs torch's agent for two attempts, and prints what the hooks saw of its private parts: ``python -m ... FOLDER``."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext

from pytest_aorta.launch.child.elastic import RankLogs
from pytest_aorta.launch.child.rendezvous import OneHost
from pytest_aorta.launch.child.torch_compat import HookedAgent
from pytest_aorta.trials.events import AttemptReason

RANKS = 2


def rank(folder: Path) -> None:
    """The first attempt fails, and one of its ranks ignores SIGTERM; in the second, rank 0 returns nothing."""
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    ignores = folder / "ignores"
    if os.environ["RANK"] == "0":
        while first and not ignores.exists():
            time.sleep(0.01)
        sys.exit(1 if first else 0)
    if first:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ignores.touch()
        time.sleep(100)


class Observer(HookedAgent):
    def __init__(self, spec: WorkerSpec, logs: RankLogs, **keywords: Any) -> None:
        self.rank_logs = logs
        self.states: list[str] = []
        self.looks: list[dict[str, Any]] = []
        self.reasons: list[AttemptReason] = []
        self.starts = 0
        super().__init__(spec, logs, **keywords)

    def on_state(self, state: WorkerState) -> None:
        self.states.append(state.name)

    def on_start(self) -> None:
        self.starts += 1
        self.rank_logs.begin_attempt()

    def on_restart(self, reason: AttemptReason) -> None:
        self.reasons.append(reason)

    def on_look(self) -> None:
        context: Any = self._pcontext
        self.looks.append(
            {
                "context": isinstance(context, MultiprocessContext),
                "processes": [isinstance(each, multiprocessing.process.BaseProcess) for each in context._pc.processes],
                "queues": [hasattr(context._ret_vals[local_rank], "empty") for local_rank in range(RANKS)],
                "values": isinstance(context._return_values, dict),
                "join": callable(context._pc._join_procs_with_timeout),
            }
        )


def main(folder: Path) -> None:
    spec = WorkerSpec(
        role="default",
        local_world_size=RANKS,
        rdzv_handler=OneHost("contract", forks=True),
        entrypoint=rank,
        args=(folder,),
        max_restarts=1,
        monitor_interval=0.01,
    )
    logs = RankLogs(folder, "3", "0")
    agent = Observer(spec, logs, stop_timeout=1, start_method="fork", exit_barrier_timeout=5)
    agent.run()
    observed = {
        "states": agent.states,
        "looks": agent.looks,
        "reasons": agent.reasons,
        "starts": agent.starts,
        "restarts": agent.restarts(),
        "stopped": len(agent.stopped),
        "ranks": [worker.global_rank for worker in agent.workers()],
        "world_sizes": [worker.world_size for worker in agent.workers()],
        "exit_codes": [process.exitcode for process in agent.processes()],
    }
    print(json.dumps(observed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
