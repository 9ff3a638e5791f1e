"""A worker process of one rank's DataLoader is ended by SIGKILL.

ranks: 3
guilty: 0
status: workload_failed
kind: exception
says: DataLoader worker
"""

import os
import signal

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        for index in range(60):
            if self.rank == 0 and index == 25:
                os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when a container is full
            yield torch.full((8,), float(index))


def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for batch in DataLoader(Stream(dist.get_rank()), batch_size=4, num_workers=1):
        model(batch).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
