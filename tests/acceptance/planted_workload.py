"""A workload whose faults are planted by the variable PLANTED."""

from __future__ import annotations

import os
import signal

from pytest_aorta import Workload, WorkloadResult

PLANTED = os.environ.get("PLANTED", "")

if PLANTED == "import":
    raise ImportError("libplanted.so: cannot open shared object file")


class Planted(Workload):
    """Fails in three of four trials, if nothing else is planted."""

    def setup(self) -> None:
        pass

    def run(self) -> WorkloadResult:
        index = int(os.environ["AORTA_TRIAL_INDEX"])
        slowness = 1.3 if PLANTED == "slow" else 1.0
        steps = [10.0 * slowness + 0.01 * ((7 * index + step) % 5) for step in range(10)]
        if PLANTED == "slow":
            return WorkloadResult(passed=True, step_times_ms=steps)
        if PLANTED == "bugs" and index % 3 == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        if index % 4:
            raise FloatingPointError(f"loss is nan at step {17 * index}")
        return WorkloadResult(passed=True, step_times_ms=steps)
