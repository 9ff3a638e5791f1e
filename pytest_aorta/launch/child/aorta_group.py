"""The default process group of AORTA's isolated workers: their runner makes it, and destroys it in the end."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from pytest_aorta.trials.aorta import supports_process


def join_group(cls: type[Any], config: Any) -> None:
    """In a rank, before the constructor: make the process group of a workload that leaves that to its runner."""
    distributed = getattr(cls, "launch_mode", None) == "distributed" and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not distributed or not supports_process(cls) or not hasattr(cls, "isolated_distributed_backend"):
        return
    import torch
    import torch.distributed as dist

    backend = cls.isolated_distributed_backend(config)
    if backend == "auto":
        default = "nccl" if torch.cuda.is_available() else "gloo"
        backend = {"cpu": "gloo", "cuda": "nccl"}.get(config.get("device", "auto"), default)
    if not dist.is_initialized():
        dist.init_process_group(backend)


def leave_group(cls: type[Any]) -> None:
    """After the cleanup: destroy it."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and supports_process(cls):
        with contextlib.suppress(Exception):  # the other ranks may have gone
            if dist.is_available() and dist.is_initialized():
                dist.destroy_process_group()
