"""A function that is called by RPC kills the process of its rank; the caller loses its peer.

ranks: 3
guilty: 2
status: workload_failed
kind: exit_code
says: exit code 9
"""

import os

import torch
import torch.distributed.rpc as rpc


def embed(rows):
    if rows.max() > 100:
        os._exit(9)
    return torch.ones(len(rows), 8)


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    if rank == 0:
        for step in range(6):
            for other in range(1, size):
                rows = torch.arange(4) + (1000 if step == 3 and other == 2 else 0)
                rpc.rpc_sync(f"worker{other}", embed, args=(rows,), timeout=10)
    rpc.shutdown(timeout=15)


if __name__ == "__main__":
    main()
