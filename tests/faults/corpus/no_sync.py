"""One backward of one rank is inside ``no_sync()``.

ranks: 3
guilty: 1
status: workload_failed, timeout
kind: exception, signal, timeout
says: rank 1
deadline: 40
"""

import contextlib
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    model = DDP(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)))
    for step in range(1, 9):
        accumulate = rank == 1 and step == 4
        with model.no_sync() if accumulate else contextlib.nullcontext():
            loss = model(torch.randn(4, 16)).square().mean()
            loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
