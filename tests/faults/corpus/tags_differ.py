"""Sender and receiver have different tags: neither is more at fault than the other.

ranks: 2
guilty: 0, 1, unknowable
status: workload_failed, timeout
kind: exception, timeout
says: recv | send | wait
deadline: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    buffer = torch.zeros(1 << 12)
    for step in range(4):
        if rank == 0:
            dist.send(buffer + step, dst=1, tag=step)
        else:
            dist.recv(buffer, src=0, tag=step if step < 2 else step + 100)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
