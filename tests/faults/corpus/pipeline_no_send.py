"""A middle stage of a pipeline drops a micro-batch; the stage after it waits for that.

ranks: 4
guilty: 1, unknowable
status: workload_failed, timeout
kind: exception, timeout
says: rank 1 | recv
deadline: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def run_stage(stage, rank, size, micro_batches):
    for index in range(micro_batches):
        x = torch.randn(8, 16)
        if rank > 0:
            dist.recv(x, src=rank - 1)
        y = stage(x)
        if rank == 1 and index == 3 and y.abs().max() > 1e-9:
            continue  # skip of outliers, which nobody else knows of
        if rank < size - 1:
            dist.send(y, dst=rank + 1)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank, size = dist.get_rank(), dist.get_world_size()
    run_stage(torch.nn.Linear(16, 16).requires_grad_(False), rank, size, 6)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
