"""One rank gathers an object that cannot be pickled.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: pickle
"""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(4):
        stats = {"rank": rank, "loss": torch.rand(1).item()}
        if rank == 1 and step == 2:
            stats["rows"] = (row for row in range(10))
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, stats)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
