"""Tensor and data parallel, 2 x 2, by hand: one rank waits for a file that never comes.

ranks: 4
guilty: 2
status: timeout
kind: timeout
says: rank 2
deadline: 25
"""

import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def wait_for_weights(path):
    while not os.path.exists(path):
        time.sleep(0.2)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    shard = torch.nn.Linear(16, 8)
    for step in range(6):
        if dist.get_rank() == 2 and step == 3:
            wait_for_weights("/tmp/never/weights.pt")
        out = shard(torch.randn(2, 16))
        dist.all_reduce(out.detach(), group=mesh.get_group("tp"))
        out.sum().backward()
        dist.all_reduce(shard.weight.grad, group=mesh.get_group("dp"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
