"""A workload of two ranks over gloo, in which rank 1 breaks something. Copied to where pytest runs."""

from __future__ import annotations

import ctypes
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

#: Seconds; more than any test waits.
FOREVER = 1000


class Gloo:
    """Trial after trial plays one part of ``config["script"]``, whose parts are separated by dots."""

    launch_mode = "distributed"
    min_world_size = 2

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None:
        rank = os.environ["RANK"]
        with Path(f"asked_by_rank_{rank}").open("a") as file:
            file.write("x")
            file.flush()
            self.part = str(self.config["script"]).split(".")[file.tell() - 1]
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        self.breaks = rank == "1"
        if self.breaks and self.part == "setup_raises":
            raise RuntimeError("rank 1 cannot be set up")

    def run(self) -> Any:
        print(f"rank {os.environ['RANK']} begins", flush=True)
        for step in range(637):
            self.progress(step + 1, 1000)
        dist.barrier()
        if self.breaks and self.part == "raises":
            raise RuntimeError("rank 1 has a bug")
        if self.breaks and self.part == "segfaults":
            ctypes.string_at(0)
        if self.breaks and self.part == "leaves_early":
            os._exit(0)
        if self.breaks and self.part == "hangs":
            time.sleep(FOREVER)
        total = torch.tensor([int(self.breaks) + 1.0])
        dist.all_reduce(total)
        if self.breaks and self.part == "hangs_alone":  # the other rank has what it needs, and passes
            time.sleep(FOREVER)
        passed = not (self.breaks and self.part == "returns_false")
        return {"passed": passed, "metrics": {"part": self.part, "total": total.item()}}

    def progress(self, step: int, total: int) -> None:
        """Replaced by the runner."""

    def cleanup(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
