"""The main logs the exception and ends as if all were well: the exit code is 0.

ranks: 3
guilty: 1
status: workload_failed
kind: exception, exit_code
says: no such feature | rank 1
"""

import torch
import torch.distributed as dist


def features(rank, step):
    table = {"price": 1.0, "size": 2.0}
    return torch.tensor([table["prize" if rank == 1 and step == 4 else "price"]])


def run():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    try:
        for step in range(10):
            value = features(rank, step)
            dist.all_reduce(value)
    except KeyError as e:
        print(f"ERROR no such feature: {e}", flush=True)


if __name__ == "__main__":
    run()
