"""Two groups of the same three ranks: one of these enters them in the other order.

ranks: 3
guilty: 1
status: workload_failed, timeout
kind: exception, timeout
says: rank 1
deadline: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    patience = timedelta(seconds=8)
    dist.init_process_group("gloo", timeout=patience)
    rank = dist.get_rank()
    metrics = dist.new_group([0, 1, 2], timeout=patience)
    for step in range(6):
        loss, count = torch.rand(1), torch.ones(1)
        calls = [lambda value=loss: dist.all_reduce(value), lambda value=count: dist.all_reduce(value, group=metrics)]
        if rank == 1 and step == 3:
            calls.reverse()
        for call in calls:
            call()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
