"""One rank skips the all-reduce of a bad step, and so is one behind for the rest of the run.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: rank 1
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    total = torch.zeros(1)
    for step in range(12):
        loss = torch.full((1,), float("inf") if rank == 1 and step == 4 else 0.5)
        if torch.isinf(loss):
            print(f"step {step}: overflow, step skipped", flush=True)
            continue
        dist.all_reduce(loss)
        total += loss
    print("mean loss", total.item() / 12)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
