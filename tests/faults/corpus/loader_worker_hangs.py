"""A worker process of one rank's DataLoader hangs.

ranks: 2
guilty: 1
status: timeout
kind: timeout
says: rank 1
deadline: 30
"""

import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        if os.environ["RANK"] == "1" and index == 17:
            time.sleep(3600)  # a read from a dead mount
        return torch.ones(4) * index


def main():
    dist.init_process_group("gloo")
    for batch in DataLoader(Images(), batch_size=4, num_workers=1):
        mean = batch.mean()
        dist.all_reduce(mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
