"""A program that one rank has started fails.

ranks: 3
guilty: 2
status: workload_failed
kind: exception
says: returned non-zero exit status 7
"""

import subprocess
import sys

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(4):
        code = 7 if (rank, step) == (2, 2) else 0
        subprocess.run([sys.executable, "-S", "-c", f"raise SystemExit({code})"], check=True)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
