"""A list of one rank outgrows the memory: MemoryError, without a message, caught and logged.

ranks: 3
guilty: 0
status: workload_failed
kind: exception, exit_code
says: MemoryError
"""

import logging

import torch
import torch.distributed as dist


def load(rank, step):
    return bytearray(1 << (60 if rank == 0 and step == 2 else 8))


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    for step in range(5):
        data = load(dist.get_rank(), step)
        dist.all_reduce(torch.tensor(len(data)))
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except BaseException as e:
        logging.critical("died of %r", e)
        raise SystemExit(1) from e
