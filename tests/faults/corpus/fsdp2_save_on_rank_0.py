"""FSDP2: only rank 0 asks for full tensors, which is a collective of all.

ranks: 3
guilty: 0
status: workload_failed, timeout
kind: exception, signal, timeout
says: rank 0
deadline: 45
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.ReLU(), torch.nn.Linear(12, 12))
    fully_shard(model, mesh=mesh)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.randn(4, 12)).square().mean().backward()
        opt.step()
        opt.zero_grad()
        if step == 2 and dist.get_rank() == 0:
            torch.save({name: value.full_tensor() for name, value in model.state_dict().items()}, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
