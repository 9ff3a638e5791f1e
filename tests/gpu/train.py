"""A script that trains a small network; the loss is NaN from step 3 on, and one run of two draws other numbers."""

from __future__ import annotations

import os

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
size = 256 if device == "cuda" else 32
model = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
other = os.environ.get("DIVERGE") == "1" and os.environ["AORTA_TRIAL_INDEX"] == "1"
for step in range(6):
    data = torch.randn(64, size).to(device)
    if other and step == 2:
        data[0, 0] += 1
    if os.environ.get("NAN") == "1" and step == 3:
        data[0, 0] = float("nan")
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
