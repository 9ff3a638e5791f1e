"""torchrun's context of the ranks, which records how they end; imported in torchrun's own process."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import ClassVar

from pytest_aorta.launch.child.attempt_log import write_exit, write_start, write_stop
from pytest_aorta.launch.child.rank_files import attempt_folder
from pytest_aorta.launch.child.torch_compat.rank_context import HookedContext
from pytest_aorta.launch.diagnosis.trial_evidence import RankExit


class RecordingContext(HookedContext):
    """Records which ranks of an attempt were started, and how each ended, below the trial's ``folder``."""

    folder: ClassVar[Path]

    def on_start(self, attempt: int) -> None:
        """The ranks of an attempt are about to be started."""
        self.attempt = attempt
        self._recorded: set[int] = set()
        self._started = time.time()
        attempt_folder(self.folder, attempt).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # a full disk must not disturb the ranks
            world_size = int(self.envs[0]["WORLD_SIZE"])
            write_start(self.folder, attempt, {rank: local for local, rank in self.ranks().items()}, world_size)

    def ranks(self) -> dict[int, int]:
        """Local to global ranks."""
        return {local_rank: int(env["RANK"]) for local_rank, env in self.envs.items()}

    def on_look(self, *, stopped: bool) -> None:
        """Record the ranks that have ended since."""
        ranks = self.ranks()
        for local_rank, process in self.processes().items():
            if local_rank not in self._recorded and (code := process.poll()) is not None:
                self._recorded.add(local_rank)
                now = time.time()
                end: RankExit = {
                    "pid": process.pid,
                    "exitcode": code,
                    "at": now,
                    "sec": now - self._started,
                    "stopped": stopped,
                }
                with contextlib.suppress(OSError):
                    self.record(ranks[local_rank], end)

    def record(self, rank: int, end: RankExit) -> None:
        """A rank has ended."""
        write_exit(self.folder, self.attempt, rank, end)

    def on_stop(self) -> None:
        """Ranks that still run are about to be asked to end."""
        with contextlib.suppress(OSError):
            write_stop(self.folder, self.attempt)

    def running(self) -> dict[int, int]:
        """The processes of the ranks that still run, by rank."""
        ranks = self.ranks()
        return {ranks[local]: process.pid for local, process in self.processes().items() if process.poll() is None}
