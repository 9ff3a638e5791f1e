"""The least of a distributed job, a process group and one all-reduce, as a script and as a workload."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class GlooRanks:
    launch_mode = "distributed"
    min_world_size = 2

    def __init__(self, config: Any = None) -> None:
        pass

    def setup(self) -> None:
        dist.init_process_group("gloo")

    def run(self) -> dict[str, bool]:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return {"passed": tensor.item() == dist.get_world_size()}

    def cleanup(self) -> None:
        dist.destroy_process_group()


if __name__ == "__main__":
    ranks = GlooRanks()
    ranks.setup()
    if not ranks.run()["passed"]:
        raise SystemExit("wrong sum")
    ranks.cleanup()
