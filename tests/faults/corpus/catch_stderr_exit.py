"""The main catches everything, prints one line to stderr, and exits 2 on all ranks.

ranks: 3
guilty: 1
status: workload_failed
kind: exception, exit_code
says: label 1000 is out of range
"""

import os
import sys

import torch
import torch.distributed as dist


class Trainer:
    def __init__(self):
        self.rank = int(os.environ["RANK"])
        self.model = torch.nn.Linear(8, 10)

    def check(self, label):
        if label >= 10:
            raise IndexError(f"label {label} is out of range")

    def fit(self, steps):
        for step in range(steps):
            self.check(1000 if (self.rank, step) == (1, 3) else step % 10)
            self.model(torch.randn(4, 8)).sum().backward()
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)


def main():
    dist.init_process_group("gloo")
    trainer = Trainer()
    try:
        trainer.fit(8)
    except Exception as e:
        print(f"rank {trainer.rank}: {e!r}", file=sys.stderr)
        sys.exit(2)
    finally:
        dist.destroy_process_group()


main()
