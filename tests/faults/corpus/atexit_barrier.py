"""A handler of ``atexit`` waits in a barrier, so that the process of a rank that raised does not end.

ranks: 3
guilty: 1
status: workload_failed, timeout
kind: exception, timeout
says: no gradient for layer 3
deadline: 60
"""

import atexit
from datetime import timedelta

import torch
import torch.distributed as dist


def shut_down():
    dist.barrier()
    dist.destroy_process_group()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    atexit.register(shut_down)
    for step in range(6):
        if dist.get_rank() == 1 and step == 3:
            raise RuntimeError("no gradient for layer 3")
        dist.all_reduce(torch.ones(4))


if __name__ == "__main__":
    main()
