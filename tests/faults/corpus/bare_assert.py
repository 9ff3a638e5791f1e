"""A bare ``assert`` fails on one rank.

ranks: 2
guilty: 0
status: workload_failed
kind: exception
says: AssertionError
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(backend="gloo")
net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)))
opt = torch.optim.Adam(net.parameters())
for epoch in range(5):
    x = torch.randn(16, 4)
    if dist.get_rank() == 0 and epoch == 3:
        x[2, 1] = float("inf")
    assert torch.isfinite(x).all()
    opt.zero_grad()
    net(x).mean().backward()
    opt.step()
dist.destroy_process_group()
