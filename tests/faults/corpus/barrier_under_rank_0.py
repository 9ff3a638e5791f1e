"""A barrier under ``if rank == 0``: the others are in the next step.

ranks: 3
guilty: 0
status: workload_failed
kind: exception
says: rank 0
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def save(model, path):
    torch.save(model.state_dict(), path)
    dist.barrier()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    model = torch.nn.Linear(16, 16)
    for step in range(10):
        model(torch.randn(2, 16)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if step == 4 and rank == 0:
            save(model, "checkpoint.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
