"""One rank leaves with ``sys.exit(text)``.

ranks: 3
guilty: 2
status: workload_failed
kind: exception, exit_code
says: loss is NaN at step 4
"""

import sys

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(10):
        loss = torch.tensor(float("nan") if rank == 2 and step == 4 else 1.0 / (step + 1))
        if not torch.isfinite(loss):
            sys.exit(f"loss is NaN at step {step}")
        dist.all_reduce(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
