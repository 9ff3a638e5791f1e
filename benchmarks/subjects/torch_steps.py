"""Some steps with torch, as a script and as a workload."""

from __future__ import annotations

from typing import Any

import torch


class Steps:
    def __init__(self, config: Any = None) -> None:
        pass

    def setup(self) -> None:
        pass

    def run(self) -> dict[str, bool]:
        """Takes some tenths of a second."""
        state = torch.randn(300, 300)
        for step in range(1, 101):
            state = torch.tanh(state @ state.T / 300)
            print(f"step {step} loss {state.sum().item()}")
        return {"passed": True}


if __name__ == "__main__":
    Steps().run()
