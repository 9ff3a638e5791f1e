"""One of two runs that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.compare.environments import Environments
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.reading import Results, triage_in_order


@dataclass(frozen=True)
class Side:
    """One of the two runs.

    Attributes:
        results: where it was read from.
        cells: in order, with the statistics of each.
        environments: of the trials of each cell.
        hosts: names, in order.
        began, ended: when the first trial and the last one began, ISO 8601 in UTC; empty where no record says it.
    """

    results: Results
    cells: dict[CellKey, CellStatistics]
    environments: dict[CellKey, Environments]
    hosts: tuple[str, ...]
    began: str
    ended: str

    @property
    def trials(self) -> int:
        """How many were read."""
        return sum(cell.total for cell in self.cells.values())


def read_side(path: Path) -> Side:
    """Read one of two runs.

    Raises:
        RequestError: it does not exist, or has no trials.
    """
    results = Results(path)
    environments: dict[CellKey, Environments] = {}
    facts = []
    for trial in results:
        facts.append(trial.facts)
        environments.setdefault(trial.facts.key, Environments()).add(trial.record)
    if not facts:
        raise results.nothing_found()
    times = sorted(each.started_at for each in facts if each.started_at)
    return Side(
        results=results,
        cells={cell.key: cell.statistics for cell in triage_in_order(facts).cells},
        environments=environments,
        hosts=tuple(sorted({each.host.name for each in facts if each.host.name})),
        began=times[0] if times else "",
        ended=times[-1] if times else "",
    )
