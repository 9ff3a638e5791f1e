"""Workloads whose trials misbehave one after the other; copied to where pytest runs.

``config["script"]`` says what each trial does: ``FAULT-PHASE``, separated by dots.
"""

from __future__ import annotations

import os
import re
from typing import Any

import fault_actions


def trial_index() -> int:
    """Of the trial that this process belongs to, by the place of its log: there is nothing else that tells."""
    found = re.search(r"/trial_(\d+)[/.]", os.readlink("/proc/self/fd/1"))
    assert found is not None
    return int(found[1])


class Faulty:
    """One process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.fault, self.phase = str(config["script"]).split(".")[trial_index()].split("-")

    def misbehave(self, phase: str) -> Any:
        """Do what this trial is here for, if this is its phase."""
        return getattr(fault_actions, self.fault)() if phase == self.phase else None

    def setup(self) -> None:
        self.misbehave("setup")

    def run(self) -> Any:
        result = self.misbehave("run")
        if self.phase == "run" and self.fault.startswith("returns"):
            return result
        return {"passed": True, "metrics": {"value": 1.5}}

    def cleanup(self) -> None:
        self.misbehave("cleanup")


class LazyFaulty(Faulty):
    """One process that imports an installed package itself, which is therefore imported for the next ones."""

    def setup(self) -> None:
        import numpy

        self.numbers = numpy.ones(3)
        super().setup()


class FaultyRanks(Faulty):
    """Two ranks that meet in every phase; rank 1 misbehaves, where the name of the fault does not say otherwise."""

    launch_mode = "distributed"
    min_world_size = 2

    def setup(self) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self.is_faulty = dist.get_rank() == 1
        dist.barrier()
        self.misbehave("setup")
        dist.barrier()

    def misbehave(self, phase: str) -> Any:
        return super().misbehave(phase) if self.is_faulty else None

    def run(self) -> Any:
        import torch
        import torch.distributed as dist

        total = torch.ones(4)
        for step in range(4):
            if step == 2:
                result = self.misbehave("run")
            dist.all_reduce(total)
        if self.is_faulty and self.phase == "run" and self.fault.startswith("returns"):
            return result
        return {"passed": True, "metrics": {"total": float(total[0])}}

    def cleanup(self) -> None:
        import torch.distributed as dist

        self.misbehave("cleanup")
        dist.destroy_process_group()
