"""Runs torch's profiler over a few steps of a rank: a Chrome trace, and the time of each operator.

Stands alone: it is loaded by path into the program's own interpreter.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


class StepProfiler:
    """One window of steps: begins after ``skip`` of them, and lasts ``steps``."""

    def __init__(self, options: dict[str, Any], folder: str, rank: int | None) -> None:
        self._skip, self._steps = int(options["skip"]), int(options["steps"])
        self._stem = os.path.join(folder, f"process_{os.getpid()}" if rank is None else f"rank_{rank}")
        self._seen = 0
        self._profiler: Any = None
        self._note = ""
        self._enter: Any = None

    def start(self) -> None:
        if not self._skip:
            self._begin()

    def step(self, number: int) -> None:
        self._seen += 1
        if self._profiler is not None and self._seen >= self._skip + self._steps:
            self._end()
        elif self._seen == self._skip:
            self._begin()

    def stop(self) -> None:
        if self._profiler is not None:
            self._note = "the program ended within the window"
            self._end()
        elif 0 < self._seen < self._skip:
            self._write({"seen": self._seen, "skip": self._skip, "steps": 0})

    def _begin(self) -> None:
        torch: Any = sys.modules["torch"]
        quiet = "KINETO_LOG_LEVEL" not in os.environ
        if quiet:  # it would write two lines of its own into the program's output
            os.environ["KINETO_LOG_LEVEL"] = "99"
        try:
            profiler = torch.profiler.profile(activities=torch.profiler.supported_activities())
            profiler.start()
        finally:
            if quiet:
                del os.environ["KINETO_LOG_LEVEL"]
        self._profiler, self._began = profiler, time.perf_counter()
        self._step_aside()

    def _step_aside(self) -> None:
        """End the window where the program starts a profiler of its own: two at a time raise an error."""
        from torch.autograd import profiler

        name = "_prepare_trace" if hasattr(profiler.profile, "_prepare_trace") else "__enter__"
        original = getattr(profiler.profile, name)

        def enter(theirs: Any) -> Any:
            if self._profiler is not None:
                self._note = "the program started a profiler of its own"
                try:
                    self._end()
                except Exception as error:  # the program's profiler matters more
                    self._note += f"; {type(error).__name__}: {error}"
            return original(theirs)

        self._enter = (profiler.profile, name, original)
        setattr(profiler.profile, name, enter)

    def _end(self) -> None:
        profiler, self._profiler = self._profiler, None
        setattr(*self._enter)
        wall = time.perf_counter() - self._began
        profiler.stop()
        profile: dict[str, Any] = {"steps": self._seen - self._skip, "wall_sec": wall, "note": self._note}
        if profile["steps"]:
            operators: dict[str, list[float]] = {}
            for average in profiler.key_averages():
                if not str(average.device_type).endswith("CPU"):
                    continue  # a kernel: its time is its operator's device time
                device = getattr(average, "self_device_time_total", None)
                if device is None:  # until torch 2.3
                    device = average.self_cuda_time_total
                operators[average.key] = [average.count, average.self_cpu_time_total, device]
            profile["operators"] = operators
        if not self._seen:
            return  # torchrun's own process imports torch as well
        # The numbers first: a trace is large, and the program may be ended while it is written.
        self._write(profile)
        profiler.export_chrome_trace(f"{self._stem}.trace.json.gz")

    def _write(self, profile: dict[str, Any]) -> None:
        path = Path(f"{self._stem}.json")
        path.with_suffix(".tmp").write_text(json.dumps(profile))
        path.with_suffix(".tmp").replace(path)


#: The name that ``start.py`` looks for, see ``collectors.contract``.
InProcess = StepProfiler
