"""Rank 0 never sets the key in the store that the others wait for.

ranks: 3
guilty: 0, unknowable
status: workload_failed
kind: exception
says: weight_decay
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        config = {"lr": "0.1"}
        for name, value in config.items():
            store.set(name, value)
    else:
        store.set_timeout(timedelta(seconds=5))
        lr, decay = (float(store.get(name)) for name in ("lr", "weight_decay"))
        print(lr, decay)
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
