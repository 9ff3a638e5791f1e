"""A function that is called by RPC never returns; the caller gives up.

ranks: 3
guilty: 1
status: workload_failed, timeout
kind: exception, timeout
says: rank 1 | worker1
deadline: 45
"""

import os
import threading

import torch
import torch.distributed.rpc as rpc

lock = threading.Lock()


def lookup(rows):
    if rows[0] == 3:
        lock.acquire()  # and never released
    with lock:
        return rows * 2


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    if rank == 0:
        for step in range(8):
            future = rpc.rpc_async("worker1", lookup, args=(torch.tensor([step]),), timeout=5)
            print(step, future.wait(), flush=True)
    rpc.shutdown(timeout=15)


if __name__ == "__main__":
    main()
