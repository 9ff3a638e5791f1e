"""One rank takes a branch that leaves parameters of DDP without gradients.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: finished reduction | unused | rank 1
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(8, 8)
        self.extra = torch.nn.Linear(8, 8)

    def forward(self, x, use_extra):
        x = self.base(x)
        return self.extra(x) if use_extra else x


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    model = DDP(Experts())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        opt.zero_grad()
        model(torch.randn(4, 8), use_extra=not (dist.get_rank() == 1 and step == 3)).sum().backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
