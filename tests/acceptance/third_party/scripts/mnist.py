"""After pytorch/examples `mnist/main.py`: one process, workers that load, a line per log interval."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim


class Digits(torch.utils.data.Dataset):
    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.broken and index == 40:
            raise KeyError("t10k-images-idx3-ubyte")
        return torch.full((1, 28, 28), index / 64), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--broken-sample", action="store_true")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(args.device)
    loader = torch.utils.data.DataLoader(Digits(args.broken_sample), batch_size=8, num_workers=1)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(F.log_softmax(model(data), dim=1), target)
        loss.backward()
        optimizer.step()
        done = batch_idx * len(data)
        print(f"Train Epoch: 1 [{done}/64 ({100.0 * batch_idx / len(loader):.0f}%)]\tLoss: {loss.item():.6f}")


if __name__ == "__main__":
    main()
