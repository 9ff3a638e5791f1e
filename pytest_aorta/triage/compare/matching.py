"""Which cell of one run is which of another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from pytest_aorta.settings import RequestError
from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.compare.sides import Side
from pytest_aorta.triage.facts import CellKey


def label(key: CellKey) -> str:
    """A cell in words: test, workload, cell and options, as far as it has them."""
    return " ".join(part for part in (key.test, key.workload, key.cell, key.options) if part)


#: What cells are matched by: the first that tells them apart. A digest has places on the disk in it.
_EXACTLY: tuple[Callable[[CellStatistics], Hashable], ...] = (
    lambda cell: cell.key,
    lambda cell: (cell.key.workload, cell.key.cell, cell.key.test, cell.key.options),
)


def match_cells(a: Side, b: Side) -> tuple[list[tuple[CellKey, CellKey]], bool]:
    """Pairs of cells, in the order of B, and whether their environments have other names.

    Raises:
        RequestError: there is none.
    """
    partner: dict[CellKey, CellKey] = {}
    for identity in _EXACTLY:
        _match(a, b, identity, partner)
    across = False
    if not partner and all(len({cell.environment for cell in side.cells.values()}) == 1 for side in (a, b)):
        _match(a, b, lambda cell: (cell.key.workload, cell.mitigations, cell.key.test, cell.key.options), partner)
        across = True
    if not partner:
        raise RequestError(_nothing_in_common(a, b))
    return [(partner[key], key) for key in b.cells if key in partner], across


def _match(a: Side, b: Side, identity: Callable[[CellStatistics], Hashable], partner: dict[CellKey, CellKey]) -> None:
    """Match what is not matched yet; several cells that are alike are matched in their order."""
    free: dict[Hashable, list[CellKey]] = {}
    taken = set(partner.values())
    for key, cell in a.cells.items():
        if key not in taken:
            free.setdefault(identity(cell), []).append(key)
    for key, cell in b.cells.items():
        if key not in partner and (candidates := free.get(identity(cell))):
            partner[key] = candidates.pop(0)


def _nothing_in_common(a: Side, b: Side) -> str:
    """What each run has, and which of it the other has not."""
    aspects: dict[str, Callable[[CellStatistics], str]] = {
        "workload": lambda cell: cell.key.workload,
        "test": lambda cell: cell.key.test,
        "environment": lambda cell: cell.environment,
        "mitigation set": lambda cell: "+".join(cell.mitigations),
    }
    reason = "no combination of workload, environment, mitigations and options is the same"
    for name, of in aspects.items():
        ours, theirs = ({of(cell) for cell in side.cells.values()} for side in (a, b))
        if ours.isdisjoint(theirs):
            reason = f"no {name} is the same ({_few(ours)} in A, {_few(theirs)} in B)"
            break
    lists = " and ".join(f"{side} has {_few([label(key) for key in run.cells])}" for side, run in (("A", a), ("B", b)))
    return f"A ({a.results.path}) and B ({b.results.path}) have no cell in common: {reason}. {lists}"


def _few(names: Sequence[str] | set[str]) -> str:
    listed = sorted(names) if isinstance(names, set) else list(names)
    shown = ", ".join(name or "none" for name in listed[:4])
    return f"{shown} and {len(listed) - 4} more" if len(listed) > 4 else shown
