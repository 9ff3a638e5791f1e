"""A ``finally`` with a barrier in it holds back the exception of one rank until the others have given up.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: image 12 is truncated
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def decode(rank, index):
    if rank == 1 and index == 12:
        raise ValueError("image 12 is truncated")
    return torch.rand(3, 8, 8)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    try:
        for index in range(20):
            mean = decode(rank, index).mean()
            dist.all_reduce(mean)
    finally:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
