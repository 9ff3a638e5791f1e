"""A workload whose module imports torch and that does nothing: what is left is the cost of a trial."""

from __future__ import annotations

from typing import Any

import torch  # noqa: F401  (what a real workload would do)


class Trivial:
    def __init__(self, config: Any) -> None:
        pass

    def setup(self) -> None:
        pass

    def run(self) -> dict[str, bool]:
        return {"passed": True}
