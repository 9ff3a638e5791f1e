"""The loader of one rank is a coroutine, and raises among others in ``gather()``.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: manifest lists no files
"""

import asyncio

import torch
import torch.distributed as dist


async def load(rank, index):
    await asyncio.sleep(0.02)
    if rank == 1 and index == 9:
        raise FileNotFoundError("manifest lists no files for part 9")
    return torch.full((4,), float(index))


async def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(5):
        parts = await asyncio.gather(*(load(rank, 3 * step + index) for index in range(3)))
        total = torch.stack(parts).sum(0)
        dist.all_reduce(total)
    dist.destroy_process_group()


asyncio.run(main())
