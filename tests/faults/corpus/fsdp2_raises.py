"""FSDP2: the forward of one rank raises, while the others gather their parameters.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: sequence of 600 tokens
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        if len(x) > 512:
            raise ValueError(f"sequence of {len(x)} tokens is longer than 512")
        return x + self.down(self.up(x).relu())


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(*(Block(24) for _ in range(3)))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters())
    for step in range(4):
        length = 600 if dist.get_rank() == 1 and step == 2 else 64
        model(torch.randn(length, 24)).square().mean().backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
