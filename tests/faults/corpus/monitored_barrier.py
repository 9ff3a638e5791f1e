"""``monitored_barrier()`` says itself which rank has not come.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: rank 1
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(4):
        if rank == 1 and step == 2:
            time.sleep(60)
        dist.monitored_barrier(timeout=timedelta(seconds=5))
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
