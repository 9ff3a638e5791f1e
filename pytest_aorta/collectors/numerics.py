"""The first tensor that is not finite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.collectors.contract import Collector, Summary, Value


class Numerics(Collector):
    """The first tensor with a NaN or Inf of each rank: step, module, forward or backward, and what produced it."""

    options: ClassVar[Mapping[str, tuple[Value, str]]] = {
        "threshold": (float("inf"), "absolute value above which an element is bad"),
    }
    in_process: ClassVar[Path | None] = Path(__file__).parent / "in_process" / "numerics.py"

    def summarize(self, folder: Path, ranks: Sequence[int]) -> Summary:
        """What each rank has seen."""
        found: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("rank_*.json"))}
        return Summary(f"{len(found)} ranks seen" if found else "", found)
