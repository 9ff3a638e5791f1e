"""One rank is ended by SIGKILL before it has joined the others.

ranks: 3
guilty: 1
status: workload_failed, infrastructure_failed
kind: signal
says: SIGKILL
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist


def load_corpus(rank):
    tokens = torch.zeros(1 << 20, dtype=torch.int32)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return tokens


def main():
    tokens = load_corpus(int(os.environ["RANK"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    dist.all_reduce(tokens)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
