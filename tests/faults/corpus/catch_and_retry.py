"""One rank catches a bad batch and repeats the step, and so enters one more collective than the others.

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


def step_once(rank, step, attempt):
    grad = torch.ones(4)
    dist.all_reduce(grad)
    if rank == 1 and step == 3 and attempt == 0:
        raise FloatingPointError("gradient overflow")
    loss = torch.zeros(())
    dist.all_reduce(loss)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    for step in range(8):
        for attempt in range(3):
            try:
                step_once(rank, step, attempt)
                break
            except FloatingPointError as e:
                print(f"step {step}: {e}, once more", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
