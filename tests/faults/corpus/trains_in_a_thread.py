"""The training of each rank runs in a thread: an exception there ends only that, and the main thread goes on.

ranks: 3
guilty: 0
status: workload_failed
kind: exception, exit_code
says: unknown optimizer | rank 0
"""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist


def train(rank):
    for step in range(8):
        name = "adamw2" if rank == 0 and step == 3 else "adamw"
        if name not in ("sgd", "adamw"):
            raise KeyError(f"unknown optimizer {name}")
        dist.all_reduce(torch.ones(4))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    worker = threading.Thread(target=train, args=(dist.get_rank(),))
    worker.start()
    worker.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
