"""What random generators, and other things that may differ between processes, give in one process."""

from __future__ import annotations

import ctypes
import json
import os
import random
import secrets
import ssl
import tempfile
import uuid
from typing import Any

import numpy as np
import torch


def draws() -> dict[str, str]:
    torch_generator = torch.Generator()
    torch_generator.seed()
    layer = torch.nn.Linear(2, 2)
    sampler = torch.utils.data.RandomSampler(range(1000))
    found: dict[str, Any] = {
        "random.random": random.random(),
        "random.shuffle": random.sample(range(10**9), 3),
        "random.Random()": random.Random().random(),
        "random.SystemRandom": random.SystemRandom().random(),
        "numpy.random.rand": np.random.rand(),
        "numpy.random.permutation": np.random.permutation(1000)[:5].tolist(),
        "numpy.random.default_rng": np.random.default_rng().random(),
        "numpy.random.RandomState": np.random.RandomState().rand(),
        "torch.rand": torch.rand(1).item(),
        "torch.initial_seed": torch.initial_seed(),
        "torch.randperm": torch.randperm(1000)[:5].tolist(),
        "torch.nn.Linear": layer.weight.tolist(),
        "torch.dropout": torch.dropout(torch.ones(64), 0.5, True).tolist(),
        "torch.Generator().seed": torch.rand(1, generator=torch_generator).item(),
        "torch.Generator()": torch.rand(1, generator=torch.Generator()).item(),
        "torch RandomSampler": list(sampler)[:5],
        "uuid.uuid1": str(uuid.uuid1()),
        "uuid.uuid4": str(uuid.uuid4()),
        "secrets.token_hex": secrets.token_hex(),
        "os.urandom": os.urandom(8).hex(),
        "ssl.RAND_bytes": ssl.RAND_bytes(8).hex(),
        "tempfile names": tempfile.mktemp(),
        "libc rand": ctypes.CDLL(None).rand(),
        "seeded on purpose": random.Random(1).random(),
    }
    return {name: json.dumps(value) for name, value in found.items()}


class Draws:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None:
        pass

    def run(self) -> dict[str, Any]:
        return {"passed": True, "metrics": draws()}


class RankDraws(Draws):
    """The same for every rank of a distributed trial."""

    launch_mode = "distributed"
    min_world_size = 2
    result_scope = "rank_local"


if __name__ == "__main__":
    print(json.dumps(draws()))
