"""What differs between the environments of cells, and from those of another run, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_aorta.triage.baselines import choose_baselines
from pytest_aorta.triage.compare.differences import differences
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.report.material import Material
from pytest_aorta.triage.report.safe_text import one_line

#: Differences that are shown, the most important ones.
_MOST = 15

#: Cells that are named where several differ alike.
_MOST_NAMES = 4


@dataclass(frozen=True)
class EnvironmentView:
    """What differs between two sets of trials; ``differences`` is empty where nothing does."""

    name: str
    other: str
    differences: tuple[str, ...]


def between_cells(material: Material, labels: Mapping[CellKey, str]) -> list[EnvironmentView]:
    """Of each cell from its baseline."""
    cells = [cell.statistics for cell in material.triage.cells]
    baselines = choose_baselines(cells, material.triage.settings.baseline).of
    return [
        EnvironmentView(labels[key], labels[base], _differences(material, base, material, key))
        for key, base in baselines.items()
    ]


def from_other_run(
    material: Material, other: Material, name: str, labels: Mapping[CellKey, str]
) -> list[EnvironmentView]:
    """Of each cell from the same one of another run; from that run's first where it has none of this name.

    Cells that differ alike share a line.
    """
    theirs = {_name(key): key for key in other.environments}
    found: dict[tuple[str, ...], list[str]] = {}
    for key in material.environments:
        same = theirs.get(_name(key)) or next(iter(other.environments))
        found.setdefault(_differences(other, same, material, key), []).append(labels[key])
    return [EnvironmentView(_listed(names), one_line(name), texts) for texts, names in found.items()]


def _name(key: CellKey) -> tuple[str, str, str]:
    return key.workload, key.cell, key.test


def _differences(before: Material, a: CellKey, after: Material, b: CellKey) -> tuple[str, ...]:
    found = differences(before.environments[a], after.environments[b], (before.installed, after.installed))
    texts = [one_line(str(each)) for each in found[:_MOST]]
    more = len(found) - _MOST
    return (*texts, *([f"and {more} more, which pytest-aorta compare shows"] if more > 0 else []))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join([*names[:_MOST_NAMES], *([f"and {more} more"] if more > 0 else [])])
