"""One rank comes to the all-reduce when the others have given up, and then loses its peers itself; all exit 1.

ranks: 3
guilty: 1
status: workload_failed
kind: exception, exit_code
says: rank 1
"""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=6))
    rank = dist.get_rank()
    for step in range(6):
        if rank == 1 and step == 3:
            time.sleep(8)  # a long garbage collection
        dist.all_reduce(torch.ones(64))


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as e:
        print("lost connection to the group:", str(e)[:60], file=sys.stderr)
        time.sleep(4)  # the logs of all ranks are uploaded
        sys.exit(1)
