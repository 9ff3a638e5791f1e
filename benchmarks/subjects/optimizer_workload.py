"""A workload that makes an optimizer in ``setup()``, for which torch imports ``torch._dynamo``."""

from __future__ import annotations

from typing import Any

import torch


class Optimizer:
    def __init__(self, config: Any) -> None:
        pass

    def setup(self) -> None:
        self.optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)

    def run(self) -> dict[str, bool]:
        return {"passed": True}
