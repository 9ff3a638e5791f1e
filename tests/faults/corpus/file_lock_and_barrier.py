"""Rank 0 waits in a barrier while it holds the lock of a cache; the others wait for that lock.

ranks: 3
guilty: 0, unknowable
status: timeout, workload_failed
kind: timeout, exception
says: barrier
deadline: 40
"""

import fcntl
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def build_cache(rank):
    with open("cache.lock", "w") as lock:
        if rank:
            time.sleep(0.5)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if rank == 0:
            torch.save(torch.arange(100), "cache.pt")
            dist.barrier()
    return torch.load("cache.pt")


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    cache = build_cache(dist.get_rank())
    dist.all_reduce(cache)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
