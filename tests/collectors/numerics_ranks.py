"""A transformer of two FSDP ranks; what the variable CASE names, goes wrong in step 3. One rank of a test."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

CASE, INF = os.environ.get("CASE", "clean"), float("inf")
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = [torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(4)]
net: Any = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))
plain: Any = net[2].linear1.forward
for layer in net:
    fully_shard(layer)
fully_shard(net)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
step = 0


def with_one(tensor: torch.Tensor, value: float) -> torch.Tensor:
    return torch.where(torch.arange(tensor.numel()).view(tensor.shape) == 5, value, tensor)


def is_now() -> bool:
    return step == 3 and rank == 1


if CASE == "forward":
    net[2].linear1.forward = lambda x: with_one(plain(x), INF) if is_now() else plain(x)
if CASE == "backward":
    net[1].linear2.register_full_backward_hook(
        lambda module, of_inputs, of_outputs: (of_inputs[0] * INF,) if is_now() else None
    )
if CASE == "reduction":
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
for step in range(1, 6):  # noqa: B007  (read above)
    optimizer.zero_grad()
    loss = net(torch.randn(3, 5, 16)).pow(2).mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
