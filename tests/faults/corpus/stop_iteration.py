"""An iterator of one rank runs out: StopIteration, without a message.

ranks: 3
guilty: 2
status: workload_failed
kind: exception
says: StopIteration
"""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = iter(torch.arange(11).float()[rank::size])
    for _ in range(4):
        value = next(mine)
        dist.all_reduce(value)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
