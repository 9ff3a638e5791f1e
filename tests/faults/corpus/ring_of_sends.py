"""Each rank receives before it sends: all wait in a ring, and nobody is at fault.

ranks: 3
guilty: none
status: workload_failed, timeout
kind: exception, timeout
says: wait | recv
deadline: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank, size = dist.get_rank(), dist.get_world_size()
    block = torch.full((64,), float(rank))
    for _ in range(2):
        dist.all_reduce(block)
    for _ in range(size):
        received = torch.empty(64)
        dist.recv(received, src=(rank - 1) % size)
        dist.send(block, dst=(rank + 1) % size)
        block = received
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
