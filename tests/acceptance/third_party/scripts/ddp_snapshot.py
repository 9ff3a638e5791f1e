"""After pytorch/examples `ddp-tutorial-series/multigpu_torchrun.py`: torchrun, and a snapshot to go on from."""

import ctypes
import os
import sys

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, snapshot_path):
        self.rank = int(os.environ["LOCAL_RANK"])
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            print("Loading snapshot")
            self.epochs_run = torch.load(snapshot_path)["EPOCHS_RUN"]
            print(f"Resuming training from snapshot at Epoch {self.epochs_run}")
        self.model = DDP(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(self, max_epochs, crash_at):
        for epoch in range(self.epochs_run, max_epochs):
            print(f"[CPU{self.rank}] Epoch {epoch} | Batchsize: 4 | Steps: 1")
            self.optimizer.zero_grad()
            self.model(torch.ones(4, 20)).sum().backward()
            self.optimizer.step()
            if epoch == crash_at and self.rank == 0:
                ctypes.string_at(0)
            if self.rank == 0:
                torch.save({"EPOCHS_RUN": epoch}, self.snapshot_path)
                print(f"Epoch {epoch} | Training snapshot saved at {self.snapshot_path}")


if __name__ == "__main__":
    init_process_group(backend="gloo")
    Trainer(torch.nn.Linear(20, 1), "snapshot.pt").train(int(sys.argv[1]), int(sys.argv[2]))
    destroy_process_group()
