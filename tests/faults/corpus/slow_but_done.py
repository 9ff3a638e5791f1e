"""One rank is slower in each step, and nothing fails: nobody is at fault.

ranks: 3
guilty: none
status: ok
"""

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(8):
        time.sleep(0.3 if rank == 2 else 0.1)
        dist.all_reduce(torch.ones(4))
        if rank == 0:
            print(f"step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
