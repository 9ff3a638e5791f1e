"""A workload that imports torch in ``run()`` and does nothing else."""

from __future__ import annotations

from typing import Any


class Lazy:
    def __init__(self, config: Any) -> None:
        pass

    def setup(self) -> None:
        pass

    def run(self) -> dict[str, bool]:
        import torch  # noqa: F401

        return {"passed": True}
