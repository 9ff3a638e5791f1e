"""Tensor and data parallel groups of 2 x 2: two ranks reduce over tp first, two over dp, and all wait in a ring.

ranks: 4
guilty: none
status: workload_failed, timeout
kind: exception, timeout
says: wait
deadline: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
    for step in range(5):
        order = [dp, tp] if step == 3 and rank in (1, 2) else [tp, dp]
        for group in order:
            dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
