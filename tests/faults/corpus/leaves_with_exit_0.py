"""One rank thinks that it has nothing to do, and leaves by ``sys.exit()``.

ranks: 3
guilty: 1
status: workload_failed
kind: exception, exit_code
says: rank 1
"""

import sys

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(8):
        work = [] if rank == 1 and step == 3 else [1.0, 2.0]
        if not work:
            print("nothing left to do", flush=True)
            sys.exit()
        dist.all_reduce(torch.tensor(work))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
