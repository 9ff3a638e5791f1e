"""The main catches everything, prints one line to stdout, and exits 1; the rank at fault uploads a report first.

ranks: 3
guilty: 1
status: workload_failed
kind: exception, exit_code
says: corrupt batch 17
"""

import sys
import time

import torch
import torch.distributed as dist


def train(rank):
    for step in range(6):
        if rank == 1 and step == 3:
            raise ValueError("corrupt batch 17")
        loss = torch.rand(1)
        dist.all_reduce(loss)
        print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    try:
        train(rank)
    except Exception as error:
        print(f"[rank {rank}] training failed: {type(error).__name__}: {error}", flush=True)
        dist.destroy_process_group()
        if rank == 1:
            time.sleep(1)  # upload of the crash report
        sys.exit(1)
    dist.destroy_process_group()
