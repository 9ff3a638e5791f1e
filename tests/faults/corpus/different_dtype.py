"""One rank reduces in double precision, the others in single.

ranks: 3
guilty: 0
status: workload_failed
kind: exception, signal
says: rank 0
"""

from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    for step in range(5):
        stats = torch.ones(1 << 16)
        if rank == 0 and step == 3:  # of the metrics that only rank 0 reads
            stats = torch.from_numpy(np.ones(1 << 16))
        dist.all_reduce(stats)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
