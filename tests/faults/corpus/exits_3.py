"""A library ends one rank with ``os._exit(3)``, without a word.

ranks: 3
guilty: 1
status: workload_failed
kind: exit_code
says: exit code 3
"""

import os

import torch
import torch.distributed as dist


def check_license(rank, step):
    if rank == 1 and step == 3:
        os._exit(3)


def main():
    dist.init_process_group("gloo")
    for step in range(6):
        check_license(dist.get_rank(), step)
        dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
