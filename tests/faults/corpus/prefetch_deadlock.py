"""The prefetch thread of one rank has died quietly; its main thread waits for the queue for ever.

ranks: 3
guilty: 2
status: timeout
kind: timeout
says: rank 2
deadline: 25
"""

import queue
import threading

import torch
import torch.distributed as dist


def prefetch(batches, limit):
    for index in range(limit):
        batches.put(torch.full((4,), float(index)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    batches = queue.Queue(maxsize=4)
    threading.Thread(target=prefetch, args=(batches, 5 if rank == 2 else 50), daemon=True).start()
    for _ in range(50):
        batch = batches.get()
        dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
