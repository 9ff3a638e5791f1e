"""One rank is ended by SIGKILL in the middle, as by a kernel short of memory.

ranks: 4
guilty: 2
status: workload_failed
kind: signal
says: SIGKILL
"""

import os
import signal

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, cache = dist.get_rank(), []
    for step in range(8):
        cache.append(torch.rand(256, 256))
        if rank == 2 and len(cache) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(cache[-1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
