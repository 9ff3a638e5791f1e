"""One rank looks for the others at a port of its own, and never finds them.

ranks: 3
guilty: 2
status: workload_failed, infrastructure_failed, timeout
kind: exception, timeout
says: rank 2
deadline: 45
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = 9 if rank == 2 else int(os.environ["MASTER_PORT"])  # a stale line in the job script
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=timedelta(seconds=8)
    )
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
