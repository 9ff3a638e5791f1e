"""An innocent rank has logged an error with its traceback and gone on; the one at fault exits without a word.

ranks: 3
guilty: 2
status: workload_failed
kind: exception, exit_code
says: rank 2
"""

import logging
import sys

import torch
import torch.distributed as dist


def write_events(rank, step):
    if rank == 0 and step == 1:
        raise PermissionError("/runs/events.out: permission denied")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(8):
        try:
            write_events(rank, step)
        except OSError:
            logging.exception("no events are written")
        if rank == 2 and step == 4:
            raise ZeroDivisionError("batch of length 0")
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except Exception:
        sys.exit(1)
