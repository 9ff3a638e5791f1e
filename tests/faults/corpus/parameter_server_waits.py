"""One worker of a parameter server stops sending, as its data has ended; the server waits for it.

ranks: 3
guilty: 2
status: workload_failed, timeout
kind: exception, timeout
says: rank 2
deadline: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank, size = dist.get_rank(), dist.get_world_size()
    weights = torch.zeros(32)
    if rank == 0:
        for _ in range(10):
            for worker in range(1, size):
                grad = torch.zeros(32)
                dist.recv(grad, src=worker)
                weights += grad
                dist.send(weights, dst=worker)
    else:
        for _ in range(6 if rank == 2 else 10):
            dist.send(torch.rand(32), dst=0)
            dist.recv(weights, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
