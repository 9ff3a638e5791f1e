"""A hook on a gradient raises within ``backward()`` of one rank.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: gradient norm
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank, step = dist.get_rank(), 0
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def guard(grad):
        if rank == 1 and step == 2:
            raise ArithmeticError(f"gradient norm {grad.norm() * 1e9:.0f} is above 100")
        return grad

    ddp = DDP(model)
    model[0].weight.register_hook(guard)
    for step in range(5):
        ddp(torch.randn(4, 8)).square().sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
