"""The last batch of one rank is smaller, and its logits are gathered with those of the others.

ranks: 3
guilty: 1
status: workload_failed
kind: exception, signal
says: rank 1
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def evaluate(model, batches):
    rows = []
    for batch in batches:
        logits = model(batch)
        parts = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, logits)
        rows.append(torch.cat(parts))
    return torch.cat(rows)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).requires_grad_(False)
    samples = torch.randn(30 if dist.get_rank() == 1 else 32, 8)
    print(evaluate(model, samples.split(8)).argmax(1).bincount())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
