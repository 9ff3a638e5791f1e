"""Runs Triton's profiler in a rank, from the import of torch to its end.

Stands alone: it is loaded by path into the program's own interpreter.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


class InProcess:
    active = True

    def __init__(self, options: dict[str, Any], folder: str, rank: int | None) -> None:
        self._options = options
        self._stem = os.path.join(folder, f"process_{os.getpid()}" if rank is None else f"rank_{rank}")

    def start(self) -> None:
        profiler: Any = importlib.import_module("triton.profiler")
        given = self._options
        more = {"backend": given["backend"]} if given["backend"] != "auto" else {}
        if given["instrumentation_mode"] or given["granularity"]:
            mode, granularity = given["instrumentation_mode"] or "default", given["granularity"]
            more["mode"] = f"{mode}:granularity={granularity}" if granularity else mode
        profiler.start(self._stem, context=given["context"], data=given["data"], **more)
        self._profiler = profiler

    def step(self, number: int) -> None: ...

    def stop(self) -> None:
        if self.active:
            self._profiler.finalize()
