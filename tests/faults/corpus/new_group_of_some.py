"""``new_group()`` is called by its members only; the rank that is none goes on.

ranks: 3
guilty: 2
status: workload_failed, timeout
kind: exception, timeout
says: rank 2
deadline: 45
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank = dist.get_rank()
    readers = None
    if rank in (0, 1):
        readers = dist.new_group([0, 1], timeout=timedelta(seconds=10))
    for step in range(3):
        if readers is not None:
            dist.all_reduce(torch.ones(2), group=readers)
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
