"""What a recipe asks of its cells, as it is compared with what their records were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CellRequest:
    """What a recipe asks of a cell.

    Attributes:
        digest: of the request.
        value: of the cell, for JSON pointers; a trial's has ``trial``, its index, in addition.
        folder: of the cell's files, below the results directory of the action: those of the workload and of the cell.
    """

    digest: str
    value: Mapping[str, Any]
    folder: tuple[str, str]


#: Action to cell to what is asked of it.
Requests = Mapping[str, Mapping[str, CellRequest]]
