"""One rank has fewer batches, and has ended when the others wait for it in DDP.

ranks: 3
guilty: 2
status: workload_failed
kind: exception
says: rank 2
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    files = {0: 40, 1: 40, 2: 36}  # samples in the file of each rank
    loader = DataLoader(TensorDataset(torch.randn(files[rank], 8)), batch_size=4)
    model = DDP(torch.nn.Linear(8, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in loader:
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()


if __name__ == "__main__":
    main()
