"""One rank calls ``broadcast`` where the others call ``all_reduce``.

ranks: 3
guilty: 2
status: workload_failed
kind: exception
says: rank 2
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def sync(loss, is_eval):
    if is_eval:
        dist.broadcast(loss, src=0)
    else:
        dist.all_reduce(loss)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    for step in range(1, 10):
        every = 4 if rank == 2 else 10  # of a configuration that was not copied to all hosts
        sync(torch.rand(1), is_eval=step % every == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
