"""A failed check in native code: one rank is ended by SIGABRT.

ranks: 3
guilty: 0
status: workload_failed
kind: signal
says: SIGABRT
"""

import os
import sys

import torch
import torch.distributed as dist


def native_check(rank, step):
    if rank == 0 and step == 4:
        print("allocator.cc:88: Check failed: block->size >= 0 (-4096 vs. 0)", file=sys.stderr, flush=True)
        os.abort()


def main():
    dist.init_process_group("gloo")
    for step in range(8):
        native_check(dist.get_rank(), step)
        dist.all_reduce(torch.ones(16))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
