"""Each rank logs to a file of its own; stdout and stderr stay empty, and the exit code is 1.

ranks: 3
guilty: 1
status: workload_failed
kind: exception, exit_code
says: shard 0003 has a bad checksum
"""

import logging
import os
import sys

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
logging.basicConfig(filename=f"train_rank{rank}.log", level=logging.INFO)


def read_shard(index):
    if rank == 1 and index == 3:
        raise OSError(f"shard {index:04} has a bad checksum")
    return torch.full((4,), float(index))


def main():
    dist.init_process_group("gloo")
    for index in range(10):
        batch = read_shard(index)
        dist.all_reduce(batch)
        logging.info("shard %d done", index)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        logging.error("training failed: %s: %s", type(error).__name__, error)
        sys.exit(1)
