"""Workloads that hold secrets while they go wrong, and never print them. Copied to where pytest runs."""

from __future__ import annotations

import ctypes
import os
from typing import Any

#: Seconds; more than any test waits.
FOREVER = 1000

NAMES = ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "GITHUB_TOKEN", "MY_PASSWORD", "DATABASE_URL", "SLURM_JWT")


class Passes:
    def __init__(self, config: dict[str, Any]) -> None:
        # All of them have come through, so what is not found in a file has not just been lost on the way.
        self.secrets = {name: os.environ[name] for name in NAMES}

    def setup(self) -> None:
        """Nothing to do."""

    def run(self) -> Any:
        return {"passed": True, "metrics": {"held": len(self.secrets)}}


class Fails(Passes):
    def run(self) -> Any:
        return {"passed": False, "failure_details": [{"iteration": 1}]}


class Raises(Passes):
    def run(self) -> Any:
        token = os.environ["HF_TOKEN"]
        raise ValueError("x" if token else "")


class RaisesInSetup(Passes):
    def setup(self) -> None:
        token = os.environ["HF_TOKEN"]
        raise ValueError("x" if token else "")


class RaisesInCleanup(Passes):
    def cleanup(self) -> None:
        token = os.environ["HF_TOKEN"]
        raise ValueError("x" if token else "")


class Segfaults(Passes):
    def run(self) -> Any:
        token = os.environ["HF_TOKEN"]
        ctypes.string_at(0)
        return token


class Hangs(Passes):
    timeout_sec = 1.0

    def run(self) -> Any:
        token = os.environ["HF_TOKEN"]
        ctypes.PyDLL(None).sleep(FOREVER)
        return token
