"""Gradients are reduced in hooks; one rank freezes a layer, so that one of its hooks never runs.

ranks: 3
guilty: 1
status: workload_failed
kind: exception, signal
says: rank 1
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    if rank == 1:  # --freeze-layers 1, given on one host only
        layers[1].requires_grad_(False)
    for parameter in layers.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    for step in range(5):
        layers.zero_grad()
        layers(torch.randn(4, 8)).mean().backward()
        print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
