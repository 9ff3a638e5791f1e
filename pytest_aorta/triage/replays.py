"""Failed trials that were run again with collectors: how many failed again, and the findings of collectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.rates import difference_p, holm

_LEVEL = 0.05


@dataclass(frozen=True)
class ReplayedCell:
    """Replays of a cell's failed trials, with the same seeds and with collectors.

    Attributes:
        failures, counted: of the counted replays; ``replays`` is the number of all.
        first_failures, first_counted: of all first runs of the cell, without collectors.
        p: of "collectors do not make failures rarer", two-sided, corrected for the number of cells (Holm). Only failed
            trials are replayed, so a higher rate says nothing: then p is 1.
        other_ways: number of replays that failed in another way than first, by that way.
        collected, not_collected: findings of collectors, and problems that prevented findings.
    """

    key: CellKey
    failures: int
    counted: int
    replays: int
    first_failures: int
    first_counted: int
    p: float
    other_ways: Mapping[str, int] = field(default_factory=dict, hash=False)
    collected: Mapping[str, int] = field(default_factory=dict, hash=False)
    not_collected: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def changes_rate(self) -> bool:
        return self.p < _LEVEL

    @property
    def warning(self) -> str:
        """Findings of collectors may not explain trials without collectors."""
        return (
            f"{self.key.workload} {self.key.cell}: collectors change the failure rate: {self.failures} of "
            f"{self.counted} replays of failed trials failed with them, {self.first_failures} of {self.first_counted} "
            f"trials without (p = {self.p:.2g})"
        )

    def lines(self) -> list[str]:
        line = f"{self.counted} failed trial{'s' * (self.counted != 1)} run again with collectors: "
        line += f"{self.failures} failed again"
        if self.failures * self.first_counted < self.first_failures * self.counted:
            does = "they change the rate" if self.changes_rate else "no change of the rate is shown"
            line += f"; of all trials {self.first_failures} of {self.first_counted} without: {does} (p = {self.p:.2g})"
        return [line, *(f"{number} in another way: {text}" for text, number in self.other_ways.items())]


#: A trial that has failed, and its replay with collectors.
Replayed = tuple[TrialFacts, TrialFacts]


def replayed_cells(replayed: Mapping[CellKey, Sequence[Replayed]], cells: Iterable[CellTrials]) -> list[ReplayedCell]:
    """Judge the replays of each cell.

    If seeds decide, all replays would also fail without collectors; if they do not, as many as of all trials. So a
    lower rate than of all trials is an effect of collectors in either case.
    """
    judged = []
    for trials in cells:
        if trials.key not in replayed:
            continue
        again = [again for _, again in replayed[trials.key]]
        pairs = [pair for pair in replayed[trials.key] if pair[1].is_counted]
        failed = [pair for pair in pairs if pair[1].is_failure]
        others = [again for first, again in failed if again.signature != first.signature]
        first = trials.statistics.failures, trials.statistics.counted
        is_fewer = len(failed) * first[1] < first[0] * len(pairs)
        judged.append(
            ReplayedCell(
                trials.key,
                len(failed),
                len(pairs),
                len(again),
                *first,
                p=difference_p(len(failed), len(pairs), *first) if is_fewer else 1.0,
                other_ways=Counter(each.outcome if each.signature is None else each.signature.text for each in others),
                collected=Counter(text for each in again for text in each.collected),
                not_collected=Counter(text for each in again for text in set(each.not_collected)),
            )
        )
    adjusted = holm([each.p for each in judged])
    return [replace(each, p=p) for each, p in zip(judged, adjusted, strict=True)]
