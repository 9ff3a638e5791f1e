"""One rank writes its checkpoint for longer than the others wait.

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


def write_checkpoint(step):
    print(f"writing checkpoint of step {step} to /mnt/shared", flush=True)
    time.sleep(60)  # a file system that has gone away


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=6))
    rank = dist.get_rank()
    for step in range(10):
        dist.all_reduce(torch.ones(32))
        if step == 5 and rank == 1:
            write_checkpoint(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
