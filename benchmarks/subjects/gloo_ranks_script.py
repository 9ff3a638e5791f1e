"""What ``gloo_ranks_workload`` does, as a script for torchrun."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(1)
dist.all_reduce(tensor)
if tensor.item() != dist.get_world_size():
    raise SystemExit("wrong sum")
dist.destroy_process_group()
