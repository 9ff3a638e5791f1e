"""The same on two ranks over gloo; rank 1 goes wrong. Copied to where pytest runs."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from spilling_workloads import NAMES


class Ranks:
    launch_mode = "distributed"
    min_world_size = 2

    def __init__(self, config: dict[str, Any]) -> None:
        self.secrets = {name: os.environ[name] for name in NAMES}

    def setup(self) -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))

    def run(self) -> Any:
        dist.barrier()
        if os.environ["RANK"] == "1":
            self.go_wrong()
        return {"passed": True, "metrics": {"held": len(self.secrets)}}

    def go_wrong(self) -> None:
        """Nothing."""

    def cleanup(self) -> None:
        dist.destroy_process_group()


class RaisesOnRank1(Ranks):
    def go_wrong(self) -> None:
        token = os.environ["HF_TOKEN"]
        raise ValueError("x" if token else "")


class AbortsOnRank1(Ranks):
    def go_wrong(self) -> None:
        os.abort()
