"""Whether a cell's effect may be that of its speed: a timing-dependent fault can hide in slower steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.statistics.interval import Interval
from pytest_aorta.triage.statistics.step_ratio import step_time_ratio

#: A cell is slower if its steps take so many times as long as those of the baseline.
THRESHOLD = 1.15


@dataclass(frozen=True)
class Confound:
    """Of a cell that is compared with a baseline.

    Attributes:
        kind: ``speed``; ``none``; ``n/a`` where one side has no step times of two trials at least.
        ratio: of the step times to those of the baseline; ``None`` for ``n/a``.
        interval: of the ratio, 95 %.
    """

    kind: Literal["speed", "none", "n/a"]
    ratio: float | None = None
    interval: Interval | None = None

    @property
    def text(self) -> str:
        """For a table: ``speed (+30%)``."""
        if self.kind == "speed" and self.ratio is not None:
            return f"speed ({self.ratio - 1:+.0%})"
        return "-" if self.kind == "none" else self.kind


def confound_of(cell: CellStatistics, baseline: CellStatistics) -> Confound:
    """``speed`` where the steps are slower and a fault could have hidden in that.

    It could, unless the cell is seen to fail at least as often as the baseline.
    """
    if cell.steps is None or baseline.steps is None:
        return Confound("n/a")
    found = step_time_ratio(cell.steps.trial_medians_ms, baseline.steps.trial_medians_ms)
    if found is None:
        return Confound("n/a")
    seen_as_often = cell.rate is not None and baseline.rate is not None and cell.rate >= baseline.rate > 0
    slower = found.interval.low > THRESHOLD and not seen_as_often
    return Confound("speed" if slower else "none", found.ratio, found.interval)
