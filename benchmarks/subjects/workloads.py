"""Workloads whose module imports torch: one does nothing, so that the cost of a trial is left."""

from __future__ import annotations

from typing import Any

import torch


class Trivial:
    def __init__(self, config: Any) -> None:
        pass

    def setup(self) -> None:
        pass

    def run(self) -> dict[str, bool]:
        return {"passed": True}


class Optimizer(Trivial):
    """torch imports ``torch._dynamo`` for it."""

    def setup(self) -> None:
        self.optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
