"""What an earlier run has left in matrix.json: its settings, and whether it was looked at before it was extended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.matrix.run_state import MATRIX_JSON
from pytest_aorta.triage.settings import MARGIN, TriageSettings


def was_looked_at(results: Path, planned: Mapping[CellKey, int]) -> bool:
    """Whether the number of trials of a resumed run may depend on what an earlier one has shown.

    It may where a cell has had trials by a plan of another size, and where the earlier run was of that kind already.
    Statistics for a number of trials that was set before do not hold then. An earlier run of the same size that was
    ended before its time is no such case: it goes on to the number that was planned.

    Args:
        results: the results directory, as the earlier run has left it.
        planned: trials of each cell in the plan of the resumed run.
    """
    earlier = _read(results / MATRIX_JSON)
    settings = earlier.get("settings")
    was_sequential = isinstance(settings, dict) and settings.get("sequential") is True
    cells = earlier.get("cells")
    for cell in cells if isinstance(cells, list) else ():
        if not isinstance(cell, dict) or not cell.get("seen"):
            continue
        key = _key_of(cell)
        if key in planned and (was_sequential or cell.get("planned") != planned[key]):
            return True
    return False


def planned_of(results: Path) -> dict[CellKey, int]:
    """The trials of each cell in the plan of the last run; empty where there is no matrix."""
    cells = _read(results / MATRIX_JSON).get("cells")
    found = {}
    for cell in cells if isinstance(cells, list) else ():
        if isinstance(cell, dict) and isinstance(planned := cell.get("planned"), int):
            found[_key_of(cell)] = planned
    return found


def _key_of(cell: Mapping[str, Any]) -> CellKey:
    return CellKey(*(str(cell.get(name, "")) for name in ("workload", "cell", "test", "options", "digest")))


def settings_of(results: Path) -> TriageSettings | None:
    """What the verdicts of the last run were made with; ``None`` where there is no matrix.

    Of a run that was ended before its time, the number of trials may depend on what was seen of them.
    """
    earlier = _read(results / MATRIX_JSON)
    settings = earlier.get("settings")
    if not isinstance(settings, dict):
        return None
    baseline, margin = settings.get("baseline"), settings.get("margin")
    return TriageSettings(
        baseline=baseline if isinstance(baseline, str) else None,
        margin=margin if isinstance(margin, float) and 0 < margin < 1 else MARGIN,
        sequential=settings.get("sequential") is True or earlier.get("complete") is False,
    )


def _read(file: Path) -> dict[str, Any]:
    """A file that is absent, torn, or by another hand, says nothing."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
