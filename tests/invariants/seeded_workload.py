"""A workload whose import seeds the generators on purpose."""

import random
from typing import Any

import numpy as np
import torch
from generator_workload import draws

random.seed(1)
np.random.seed(2)
torch.manual_seed(3)


class SeededAtImport:
    """Its draws are the same in every fresh process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None:
        pass

    def run(self) -> dict[str, Any]:
        return {"passed": True, "metrics": draws()}
