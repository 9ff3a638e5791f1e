"""Some steps with torch: as a script, and as what ``torch_steps_workload.py`` runs."""

from __future__ import annotations

import torch


def steps() -> None:
    """Takes some tenths of a second."""
    state = torch.randn(300, 300)
    for step in range(1, 101):
        state = torch.tanh(state @ state.T / 300)
        print(f"step {step} loss {state.sum().item()}")


if __name__ == "__main__":
    steps()
