"""Each rank has logged a failed fetch that was made good; later, one of them crashes.

ranks: 3
guilty: 2
status: workload_failed
kind: signal
says: SIGSEGV
"""

import ctypes
import logging

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO)


def fetch(step, attempt):
    if step == 1 and attempt == 0:
        raise TimeoutError("object store: no answer within 5 s")
    return torch.ones(8) * step


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(6):
        try:
            batch = fetch(step, 0)
        except TimeoutError:
            logging.exception("fetch failed, once more")
            batch = fetch(step, 1)
        if rank == 2 and step == 4:
            ctypes.string_at(8)
        dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
