"""Which cells need no more trials: published by the process that owns the reports, asked for before every trial."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.triage.facts import CellKey
from pytest_aorta.workspace.atomic import write_json

if TYPE_CHECKING:
    from pytest_aorta.trials.spec import TrialSpec

_FILE = "stopped_cells.json"


def cell_of(spec: TrialSpec) -> CellKey:
    """The cell of a trial of a plan."""
    return CellKey(spec.workload.name, spec.cell)


class DecidedCells:
    """Reasons not to run more trials of a cell.

    Args:
        folder: that the xdist workers share with their controller; ``None`` where one process does it all.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = None if folder is None else folder / _FILE
        self._reasons: dict[CellKey, str] = {}
        self._seen: tuple[int, int] | None = None

    def publish(self, reasons: Mapping[CellKey, str]) -> None:
        """Replace what is known."""
        self._reasons = dict(reasons)
        if self._file is not None:
            write_json(self._file, [{**vars(key), "reason": reason} for key, reason in reasons.items()])

    def reason(self, key: CellKey) -> str | None:
        """Why no more trials of a cell are needed; ``None`` where they are."""
        self._read()
        return self._reasons.get(key)

    def _read(self) -> None:
        """Take over what another process has published since the last time."""
        if self._file is None:
            return
        try:
            now = os.stat(self._file)
            if (now.st_ino, now.st_mtime_ns) == self._seen:
                return
            found: list[dict[str, Any]] = json.loads(self._file.read_text(encoding="utf-8"))
        except OSError:
            return  # nothing was decided yet
        self._seen = now.st_ino, now.st_mtime_ns
        self._reasons = {
            CellKey(**{name: text for name, text in each.items() if name != "reason"}): each["reason"] for each in found
        }
