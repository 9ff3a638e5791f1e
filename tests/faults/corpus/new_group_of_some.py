"""One rank leaves out a ``new_group()``, so that its next group has another name than that of the others.

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
    patience = timedelta(seconds=8)
    dist.init_process_group("gloo", timeout=patience)
    rank = dist.get_rank()
    if rank in (0, 1):
        readers = dist.new_group([0, 1], timeout=patience)
        dist.all_reduce(torch.ones(2), group=readers)
    everyone = dist.new_group([0, 1, 2], timeout=patience)
    for step in range(3):
        dist.all_reduce(torch.ones(2), group=everyone)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
