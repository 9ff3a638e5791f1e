"""A native call of one rank never returns, and holds the GIL.

ranks: 2
guilty: 1
status: timeout
kind: timeout
says: rank 1
deadline: 25
"""

import ctypes

import torch
import torch.distributed as dist

libc = ctypes.PyDLL(None)


def compress(rank, step):
    if rank == 1 and step == 2:
        libc.sleep(3600)


def main():
    dist.init_process_group("gloo")
    for step in range(4):
        compress(dist.get_rank(), step)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
