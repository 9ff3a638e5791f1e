"""Workloads of the suite for GPUs; copied to where pytest runs. Without a GPU they do what they can on the CPU."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

#: Seconds; more than any test waits.
FOREVER = 1000


def has_gpu() -> bool:
    """Not to be asked at import: it would open the driver, and no fork could use it."""
    return torch.cuda.is_available()


def device() -> torch.device:
    if not has_gpu():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def synchronize() -> None:
    if has_gpu():
        torch.cuda.synchronize()


class Uses:
    """Computes on each device that it sees, for ``seconds``."""

    def __init__(self, config: Any) -> None:
        self.seconds = float(config.get("seconds", 0.2))

    def setup(self) -> None:
        size = 2048 if has_gpu() else 64
        self.matrix = torch.randn(size, size, device=device())

    def run(self) -> dict[str, Any]:
        begun, until = time.time(), time.monotonic() + self.seconds
        while time.monotonic() < until:
            product = self.matrix @ self.matrix
            synchronize()
        seen = torch.cuda.device_count() if has_gpu() else 0
        uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in range(seen)]
        metrics = {"pid": os.getpid(), "seen": seen, "uuids": uuids, "begun": begun, "ended": time.time()}
        return {"passed": bool(product.isfinite().all()), "metrics": metrics}


class _Elsewhere:
    """Memory that begins in a tensor and does not end there."""

    def __init__(self, inside: torch.Tensor, elements: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (elements,),
            "typestr": "<f4",
            "data": (inside.data_ptr(), False),
            "version": 2,
        }


class Fails:
    """One way to fail on a GPU, ``fault``; what is nearest to it on a CPU."""

    def __init__(self, config: Any) -> None:
        self.fault = config["fault"]

    def setup(self) -> None:
        self.device = device()
        self.small = torch.ones(256, device=self.device)
        synchronize()

    def run(self) -> dict[str, bool]:
        getattr(self, self.fault)()
        synchronize()
        return {"passed": True}

    def nothing(self) -> None:
        self.small.sum().item()

    def out_of_memory(self) -> None:
        self.large = [torch.empty(2**50, dtype=torch.uint8, device=self.device)]

    def device_assert(self) -> None:
        self.small[torch.tensor([3, 100_000], device=self.device)].sum().item()

    def illegal_access(self) -> None:
        if not has_gpu():
            ctypes.string_at(0)
        far = torch.as_tensor(_Elsewhere(self.small, 2**38), device=self.device)
        far[2**37 : 2**37 + 1024].sum().item()

    def hangs(self) -> None:
        if has_gpu():
            for _ in range(1000):
                torch.cuda._sleep(2**40)  # type: ignore[no-untyped-call]
            synchronize()
        time.sleep(FOREVER)


class Ranks:
    """Two ranks, the second of which does ``fault`` between two collectives."""

    launch_mode = "distributed"
    min_world_size = 2

    def __init__(self, config: Any) -> None:
        self.fault = config["fault"]

    def setup(self) -> None:
        self.rank, self.device = int(os.environ["RANK"]), device()
        dist.init_process_group("nccl" if has_gpu() else "gloo", timeout=timedelta(seconds=120))

    def run(self) -> dict[str, Any]:
        total = torch.ones(4, device=self.device)
        for _ in range(3):
            dist.all_reduce(total)
        synchronize()
        if self.rank == 1:
            self.fail()
        dist.all_reduce(total)
        synchronize()
        return {"passed": bool(total[0] == 16.0), "metrics": {"backend": dist.get_backend()}}

    def fail(self) -> None:
        if self.fault == "raises":
            raise ValueError("rank 1 cannot go on")
        if self.fault == "exits":
            os._exit(3)
        if self.fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "segfault":
            ctypes.string_at(0)
        if self.fault == "hangs":
            time.sleep(FOREVER)
        if self.fault == "device_assert":
            torch.ones(4, device=self.device)[torch.tensor([100_000], device=self.device)].sum().item()

    def cleanup(self) -> None:
        dist.destroy_process_group()
