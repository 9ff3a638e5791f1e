"""One rank has fewer batches, and waits in the barrier after the epoch, while the others are in DDP.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: rank 1
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(8, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6 if rank == 1 else 7):  # 19 files, dealt to three ranks
        opt.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        opt.step()
    dist.barrier()
    if rank == 0:
        torch.save(model.state_dict(), "last.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
