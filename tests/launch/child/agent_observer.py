"""Runs torch's agent for two attempts, and prints what its hooks have seen: ``python agent_observer.py FOLDER``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import LogsDest

from pytest_aorta.launch.child.recorder import RankRecorder, ReportingAgent, use_recorder
from pytest_aorta.launch.child.rendezvous import rendezvous
from pytest_aorta.trials.execution import DEFAULTS
from pytest_aorta.trials.records import AttemptReason, Event

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


class Recorder(RankRecorder):
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        logs = super().reify(envs)
        seen.append(f"attempt {self.attempt} of ranks {sorted(self.ranks.values())}")
        return logs

    def look(self, codes: Mapping[int, int | None], *, stopped: bool) -> set[int]:
        for rank, code in codes.items():
            if code is not None and rank in self.running:
                seen.append(f"rank {rank}: {code}{', stopped' if stopped else ''}")
        super().look(codes, stopped=stopped)
        return set()  # these ranks write no events

    def on_restart(self, reason: AttemptReason) -> None:
        seen.append(f"restart: {reason}")

    def stop(self) -> None:
        seen.append(f"stop {sorted(self.running)}")


def see_group(event: Event) -> None:
    if event["type"] == "group":
        seen.append(event["group"].state)


def main(folder: Path) -> None:
    payload: Any = {"folder": str(folder), "sockets": str(folder), "source": None, "grace": 1.0}
    recorder = Recorder(payload, "elastic", DEFAULTS, see_group, relays=False)
    use_recorder(recorder)
    spec = WorkerSpec(
        role="default",
        local_world_size=RANKS,
        rdzv_handler=rendezvous(DEFAULTS, "contract"),
        entrypoint=rank,
        args=(folder,),
        max_restarts=1,
        monitor_interval=0.01,
    )
    ReportingAgent(spec, recorder, start_method="fork", exit_barrier_timeout=5).run()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
