"""The main prints the traceback to stdout, buffered, and leaves with code 1.

ranks: 3
guilty: 1
status: workload_failed
kind: exception, exit_code
says: weights of layer 2 have shape
"""

import argparse
import sys
import traceback

import torch
import torch.distributed as dist


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    return parser.parse_args()


def load_weights(rank):
    shape = (4, 5) if rank == 1 else (4, 4)
    if shape != (4, 4):
        raise ValueError(f"weights of layer 2 have shape {shape}, expected (4, 4)")
    return torch.ones(shape)


def run(args):
    dist.init_process_group("gloo")
    for step in range(args.steps):
        dist.all_reduce(torch.ones(4) if step != 3 else load_weights(dist.get_rank()))
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        run(parse())
    except Exception:
        traceback.print_exc(file=sys.stdout)
        sys.exit(1)
