"""Tensor and data parallel, 2 x 2: the input of one rank is NaN, and a check raises.

ranks: 4
guilty: 3
status: workload_failed
kind: exception
says: activations are not finite
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    mlp = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    mlp = parallelize_module(mlp, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for step in range(4):
        x = torch.randn(4, 8)
        if dist.get_rank() == 3 and step == 2:
            x[0] = float("nan")
        if not x.isfinite().all():
            raise FloatingPointError(f"step {step}: activations are not finite")
        mlp(x).square().mean().backward()
        for parameter in mlp.parameters():
            dist.all_reduce(parameter.grad.to_local(), group=mesh.get_group("dp"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
