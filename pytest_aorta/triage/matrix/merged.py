"""The matrix of trials that were run in several places."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.matrix.document import MatrixText
from pytest_aorta.triage.matrix.earlier import planned_of, settings_of
from pytest_aorta.triage.matrix.run_state import MATRIX_JSON, MATRIX_MD, RunState
from pytest_aorta.triage.matrix.text import markdown
from pytest_aorta.triage.reading import Results, triage_in_order
from pytest_aorta.workspace.atomic import write_text


def write_merged_matrix(results: Path, parts: Sequence[Path]) -> None:
    """Write ``matrix.json`` and ``matrix.md`` of all trials in a results directory.

    Args:
        results: the directory.
        parts: the results directories that the trials come from: the settings are those of the first that has some.

    Raises:
        OSError: the files cannot be written.
    """
    facts = [trial.facts for trial in Results(results)]
    if not facts:  # replays only
        return
    known = [settings for path in (results, *parts) if (settings := settings_of(path)) is not None]
    triage = triage_in_order(facts, known[0] if known else None)
    seen = {cell.key: cell.statistics.total for cell in triage.cells}
    planned: dict[CellKey, int] = dict(seen)
    for path in (results, *parts):
        for key, count in planned_of(path).items():
            planned[key] = max(count, planned.get(key, 0))
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    began = min(each.started_at for each in facts)
    complete = all(seen.get(key, 0) >= count for key, count in planned.items())
    interrupted = None if complete else "parts of the plan are not merged"
    state = RunState(None, planned, began, now, complete, interrupted)
    table = triage.table()
    write_text(results / MATRIX_JSON, MatrixText().of(table, state))
    write_text(results / MATRIX_MD, markdown(table, state))
