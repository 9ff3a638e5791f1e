"""One rank asks for more memory than there is.

ranks: 2
guilty: 1
status: workload_failed
kind: exception
says: memory
"""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    kept = []
    for step in range(6):
        length = 1 << (44 if rank == 1 and step == 3 else 10)
        kept.append(torch.zeros(length, 64))
        dist.all_reduce(kept[-1][0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
