"""What a matrix says of its run. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_aorta.triage.facts import CellKey

#: The matrix in the results directory, for programs and for people.
MATRIX_JSON, MATRIX_MD = "matrix.json", "matrix.md"


@dataclass(frozen=True)
class RunState:
    """What a matrix says of its run.

    Attributes:
        plan: digest of the plan; ``None`` where tests have started the trials.
        planned: trials of each cell of the plan.
        started_at, written_at: ISO 8601 in UTC.
        complete: whether the run has come to its end.
        interrupted: what has ended it before, or ``None``.
    """

    plan: str | None = None
    planned: Mapping[CellKey, int] = field(default_factory=dict)
    started_at: str = ""
    written_at: str = ""
    complete: bool = True
    interrupted: str | None = None
