"""Trains a small network whose loss is sometimes NaN: a module reads what a thread has not written yet."""

import os
import random
import sys
import threading
import time

import torch
from torch import nn

busy = random.Random()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Scale(nn.Module):
    """Divides by the largest value, which a thread finds, as another stream of a GPU would."""

    def find(self, x: torch.Tensor, largest: torch.Tensor) -> None:
        if busy.random() < 0.05:
            time.sleep(0.2)
        largest.data.copy_(x.abs().max())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest = torch.zeros(1)
        thread = threading.Thread(target=self.find, args=(x.detach(), largest))
        thread.start()
        thread.join(None if os.environ.get("WAIT_FOR_SCALE") == "1" else 0.1)
        return x / largest


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 1)
        self.blocks, self.scale = nn.ModuleList(Block(16) for _ in range(3)), Scale()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[1](self.blocks[0](self.enter(x)))
        return self.leave(self.blocks[2](self.scale(x)))


torch.set_num_threads(1)  # it is small
torch.manual_seed(int(os.environ.get("AORTA_SEED", "0")))
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(1, 11):
    x = torch.randn(32, 8)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
sys.exit(0 if loss.isfinite() else "the loss is not finite")
