"""What a user may set of the verdicts."""

from __future__ import annotations

from dataclasses import dataclass

#: Differences of the failure rate that are no effect.
MARGIN = 0.1


@dataclass(frozen=True)
class TriageSettings:
    """What a user may set of the verdicts.

    Attributes:
        baseline: cell or mitigation set that others are compared with; ``None`` for the rule of ``choose_baselines``.
        margin: differences of the failure rate that are no effect.
        sequential: whether the number of trials depends on what was seen of them.
    """

    baseline: str | None = None
    margin: float = MARGIN
    sequential: bool = False
