"""Two ranks have the same broken file, and raise in the same step.

ranks: 4
guilty: 1, 3, unknowable
status: workload_failed
kind: exception
says: unexpected end of file
"""

import torch
import torch.distributed as dist


def read(rank, step):
    if rank % 2 and step == 3:
        raise EOFError("unexpected end of file in data-00003.tar")
    return torch.ones(4)


def main():
    dist.init_process_group("gloo")
    for step in range(6):
        dist.all_reduce(read(dist.get_rank(), step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
