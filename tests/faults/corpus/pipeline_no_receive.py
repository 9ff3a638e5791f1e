"""The last stage of a pipeline receives one micro-batch too few.

ranks: 3
guilty: 2, unknowable
status: workload_failed, timeout
kind: exception, timeout
says: rank 2 | send
deadline: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = torch.nn.Linear(64, 64).requires_grad_(False)
    micro_batches = 7 if rank == size - 1 else 8
    for _ in range(micro_batches):
        x = torch.randn(512, 64)
        if rank > 0:
            dist.recv(x, src=rank - 1)
        x = stage(x)
        if rank < size - 1:
            dist.send(x, dst=rank + 1)
    loss = x.mean()
    dist.all_reduce(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
