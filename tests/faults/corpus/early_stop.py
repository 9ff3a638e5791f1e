"""Rank 0 stops early by its own loss, and does not tell the others.

ranks: 3
guilty: 0
status: workload_failed
kind: exception
says: rank 0
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    best, patience = 1e9, 0
    for epoch in range(20):
        grads = torch.ones(16)
        dist.all_reduce(grads)
        loss = 1.0 if rank == 0 else 1.0 / (epoch + 1)
        best, patience = min(best, loss), (patience + 1 if loss >= best else 0)
        if patience == 4:
            print("early stop in epoch", epoch, flush=True)
            break
    if rank == 0:
        results = [None] * dist.get_world_size()
    dist.gather_object({"rank": rank, "best": best}, results if rank == 0 else None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
