"""A watchdog of the host sends SIGTERM to one rank.

ranks: 3
guilty: 1
status: workload_failed
kind: signal
says: SIGTERM
"""

import os
import subprocess

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(200):
        if rank == 1 and step == 5:
            subprocess.run(["sh", "-c", f"kill -TERM {os.getpid()}"], check=True)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
