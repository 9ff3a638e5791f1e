"""Rank 0 cannot write its checkpoint.

ranks: 3
guilty: 0
status: workload_failed
kind: exception
says: No space left on device
"""

import torch
import torch.distributed as dist


def save(model):
    with open("/dev/full", "wb") as file:
        file.write(model.weight.detach().numpy().tobytes())


def main():
    dist.init_process_group("gloo")
    model = torch.nn.Linear(64, 64)
    for step in range(8):
        model(torch.randn(2, 64)).sum().backward()
        dist.all_reduce(model.weight.grad)
        if step == 3 and dist.get_rank() == 0:
            save(model)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
