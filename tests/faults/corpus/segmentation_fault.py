"""A native extension of one rank reads from address 0.

ranks: 3
guilty: 2
status: workload_failed
kind: signal
says: SIGSEGV
"""

import ctypes

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def augment(batch, pointer):
    if pointer is not None:
        ctypes.memmove(batch.data_ptr(), pointer, 64)
    return batch


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(16, 16))
    for step in range(6):
        pointer = 0 if dist.get_rank() == 2 and step == 3 else None
        model(augment(torch.randn(4, 16), pointer)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
