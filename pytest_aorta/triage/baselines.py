"""Which cell each cell is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_aorta.settings import RequestError
from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.facts import CellKey


class BaselineError(RequestError):
    """A baseline that is no cell."""


@dataclass(frozen=True)
class Baselines:
    """``of``: the baseline of each cell that is compared with one. ``cells``: the baselines themselves."""

    of: dict[CellKey, CellKey]
    cells: frozenset[CellKey]


def choose_baselines(cells: Sequence[CellStatistics], wanted: str | None = None) -> Baselines:
    """The baseline of each cell.

    Cells of one workload (and test, options) are compared with each other. The baseline is the
    mitigation set ``wanted``, or the cell of that name; else that of the first cell whose
    environment or first mitigation is called ``baseline-...``, else the first without mitigations (``none``), else
    the first of all; cells of which nothing came to its main work are passed over for the next, unless one was
    asked for. Each cell is compared with the baseline's mitigation set in its own environment, and that set in
    other environments with the first of them. A cell of the name ``wanted`` is the baseline of all.
    """
    groups: dict[tuple[str, str, str, str], list[CellStatistics]] = {}
    for cell in cells:
        groups.setdefault(cell.key.group, []).append(cell)
    of: dict[CellKey, CellKey] = {}
    found: set[CellKey] = set()
    for group in groups.values():
        first = _first(group, wanted)
        if first is None:
            continue
        found.add(first.key)
        everywhere = wanted is not None and wanted == first.key.cell
        same_set = {} if everywhere else {c.environment: c for c in group if c.mitigations == first.mitigations}
        for cell in group:
            if cell is first:
                continue
            base = same_set.get(cell.environment, first)
            base = first if base is cell else base
            of[cell.key] = base.key
            found.add(base.key)
    return Baselines(of, frozenset(found))


def check_baseline(wanted: str, cells: Sequence[tuple[str, Sequence[str]]], source: str = "--aorta-baseline") -> None:
    """Refuse a baseline that no cell (label, mitigation set) has; ``source`` is where it was asked for.

    Raises:
        BaselineError: naming the cells that there are.
    """
    if not any(is_named(wanted, label, mitigations) for label, mitigations in cells):
        known = ", ".join(dict.fromkeys(label for label, _ in cells))
        raise BaselineError(f"{source}: there is no cell {wanted!r}; there are {known}")


def is_named(wanted: str, label: str, mitigations: Sequence[str]) -> bool:
    """Whether a user means this cell: by its label, or by its mitigation set (``a,b`` or ``a+b``)."""
    return wanted == label or wanted.replace("+", ",") == ",".join(mitigations)


def _first(group: Sequence[CellStatistics], wanted: str | None) -> CellStatistics | None:
    if wanted is not None:
        return next((cell for cell in group if is_named(wanted, cell.key.cell, cell.mitigations)), None)
    candidates = [
        *(cell for cell in group if any(name.startswith("baseline-") for name in _names(cell))),
        *(cell for cell in group if cell.mitigations == ("none",)),
        *group,
    ]
    return next((cell for cell in candidates if not cell.did_not_run), None)


def _names(cell: CellStatistics) -> tuple[str, ...]:
    return cell.environment, *cell.mitigations[:1]
