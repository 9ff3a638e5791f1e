"""A worker process of one rank's DataLoader raises.

ranks: 3
guilty: 1
status: workload_failed
kind: exception
says: cannot identify image
"""

import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if self.rank == 1 and index == 13:
            raise OSError(f"cannot identify image file {os.path.join('train', f'{index:05}.jpg')}")
        return torch.rand(3, 4, 4)


def main():
    dist.init_process_group("gloo")
    loader = DataLoader(Images(dist.get_rank()), batch_size=4, num_workers=2)
    for batch in loader:
        mean = batch.mean()
        dist.all_reduce(mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
