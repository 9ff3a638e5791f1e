"""All ranks see the NaN that one of them has put into the sum, and all raise alike.

ranks: 3
guilty: none
status: workload_failed
kind: exception
says: loss is not finite
"""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(6):
        loss = torch.tensor([1.0])
        if rank == 2 and step == 4:
            loss = loss.log().log().sqrt() * float("nan")
        dist.all_reduce(loss)
        if not loss.isfinite():
            raise FloatingPointError(f"step {step}: loss is not finite")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
