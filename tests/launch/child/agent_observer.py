"""Runs torch's agent for two attempts, and prints what its hooks have seen: ``python agent_observer.py FOLDER``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from torch.distributed.elastic.agent.server.api import WorkerSpec

from pytest_aorta.launch.child.attempt_files import AttemptRecorder
from pytest_aorta.launch.child.elastic import RankLogs
from pytest_aorta.launch.child.rendezvous import rendezvous
from pytest_aorta.launch.child.torch_compat import ReportingAgent, use_recorder
from pytest_aorta.launch.diagnosis.evidence import RankExit
from pytest_aorta.trials.execution import ElasticOptions
from pytest_aorta.trials.records import AttemptReason, GroupState

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


seen: list[object] = []


class Recorder(AttemptRecorder):
    def begin(self, envs: Mapping[int, Mapping[str, str]]) -> None:
        super().begin(envs)
        seen.append(f"attempt {self.attempt} of ranks {sorted(self.ranks.values())}")

    def ended(self, rank: int, end: RankExit) -> None:
        seen.append(f"rank {rank}: {end.exitcode}{', stopped' if end.stopped else ''}")

    def on_state(self, state: GroupState) -> None:
        seen.append(state.state)

    def on_restart(self, reason: AttemptReason) -> None:
        seen.append(f"restart: {reason}")

    def stop(self) -> None:
        seen.append(f"stop {sorted(self.running)}")


def main(folder: Path) -> None:
    use_recorder(Recorder(folder), 1.0)
    spec = WorkerSpec(
        role="default",
        local_world_size=RANKS,
        rdzv_handler=rendezvous(ElasticOptions(), "contract"),
        entrypoint=rank,
        args=(folder,),
        max_restarts=1,
        monitor_interval=0.01,
    )
    ReportingAgent(spec, RankLogs(folder, "3", "0"), start_method="fork", exit_barrier_timeout=5).run()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
