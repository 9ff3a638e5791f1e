"""One rank expects another number of objects from rank 0 than it sends.

ranks: 3
guilty: 2
status: workload_failed, timeout
kind: exception, signal, timeout
says: rank 2
deadline: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    if rank == 0:
        settings = [{"lr": 0.1}, {"steps": 5}]
    else:
        settings = [None] * (3 if rank == 2 else 2)  # an older checkout
    dist.broadcast_object_list(settings, src=0)
    for _ in range(settings[1]["steps"]):
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
