"""After nanoGPT's `train.py`: one script for one process and for torchrun; options as `--name=value`; `iter` lines."""

import os
import sys
import time

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

learning_rate = 0.01
max_iters = 6
broken_rank = -1
for arg in sys.argv[1:]:  # nanoGPT's configurator.py
    key, val = arg.removeprefix("--").split("=")
    globals()[key] = type(globals()[key])(val)

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="gloo")
    ddp_rank = int(os.environ["RANK"])
else:
    ddp_rank = 0
master_process = ddp_rank == 0
torch.manual_seed(1337 + ddp_rank)


def get_batch(iter_num):
    if ddp_rank == broken_rank and iter_num == 3:
        raise IndexError("index 50257 is out of bounds for dimension 0 with size 50257")
    x = torch.randint(16, (4, 8))
    return x, x.roll(-1, 1)


model = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16))
if ddp:
    model = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
t0 = time.time()
for iter_num in range(max_iters):
    X, Y = get_batch(iter_num)
    loss = torch.nn.functional.cross_entropy(model(X).view(-1, 16), Y.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    if master_process:
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {(t1 - t0) * 1000:.2f}ms, mfu -100.00%")
    t0 = t1
if ddp:
    destroy_process_group()
