"""A batch that cannot be read raises on one rank; the others wait for it in the all-reduce of DDP.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: corrupt batch 17
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def batches(rank):
    for index in range(100):
        if rank == 1 and index == 17:
            raise ValueError("corrupt batch 17")
        yield torch.randn(8, 16)


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in batches(dist.get_rank()):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
