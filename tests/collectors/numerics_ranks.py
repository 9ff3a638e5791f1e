"""A program that trains a transformer on two FSDP ranks; the number of the trial says what goes wrong."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

INF = float("inf")


def train() -> None:
    """Five steps; what is planted, is planted in step 3 of rank 1."""
    case = ("forward", "backward", "reduction", "clean")[int(os.environ["AORTA_TRIAL"])]
    step, rank = 0, dist.get_rank()
    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(4)]
    net: Any = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))
    plain: Any = net[2].linear1.forward
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def is_now() -> bool:
        return step == 3 and rank == 1

    def with_one(tensor: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(tensor.numel()).view(tensor.shape) == 5, INF, tensor)

    if case == "forward":
        net[2].linear1.forward = lambda x: with_one(plain(x)) if is_now() else plain(x)
    if case == "backward":
        net[1].linear2.register_full_backward_hook(
            lambda module, of_inputs, of_outputs: (of_inputs[0] * INF,) if is_now() else None
        )
    if case == "reduction":
        name = next(name for name in ("reduce_scatter_single", "reduce_scatter_tensor") if hasattr(dist, name))
        reduce_scatter = getattr(dist, name)

        def reduced(output: torch.Tensor, input: torch.Tensor, **given: Any) -> Any:
            work = reduce_scatter(output=output, input=input, **given)
            if is_now():
                if work is not None:
                    work.wait()
                output[0] = INF
            return work

        setattr(dist, name, reduced)
    for number in range(1, 6):
        step = number
        optimizer.zero_grad()
        net(torch.randn(3, 5, 16)).pow(2).mean().backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
