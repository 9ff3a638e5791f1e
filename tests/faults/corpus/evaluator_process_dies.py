"""A helper process of rank 0 has crashed; rank 0 waits for its answer for ever.

ranks: 2
guilty: 0
status: timeout
kind: timeout
says: rank 0
deadline: 30
"""

import ctypes
import multiprocessing

import torch
import torch.distributed as dist


def evaluate(tasks, scores):
    while True:
        step = tasks.get()
        if step == 2:
            ctypes.string_at(0)
        scores.put(step / 10)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        context = multiprocessing.get_context("fork")
        tasks, scores = context.Queue(), context.Queue()
        context.Process(target=evaluate, args=(tasks, scores), daemon=True).start()
    for step in range(5):
        score = torch.zeros(1)
        if rank == 0:
            tasks.put(step)
            score += scores.get()
        dist.broadcast(score, src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
