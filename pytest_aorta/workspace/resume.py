"""What a resumed run finds: results that may stand for a trial, and files that lie where a smaller plan had them."""

from __future__ import annotations

import contextlib
import glob
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.trials.names import identifier
from pytest_aorta.workspace.atomic import write_json

if TYPE_CHECKING:
    from pytest_aorta.trials.result import TrialResult

#: Statuses that depend on the workload; with any other, a trial is run again.
REPLAYABLE = ("ok", "workload_failed", "timeout")


def read_record(file: Path) -> TrialResult | None:
    """The record in a trial file; ``None`` when there is none, or it is torn."""
    from pytest_aorta.trials.result import TrialResult  # pydantic, which the writer does without until here

    try:
        return TrialResult.from_dict(_load(file))
    except (OSError, ValueError, RecursionError):
        return None


def reasons_against(record: TrialResult) -> list[str]:
    """Why a record cannot stand for any trial; empty where it may."""
    if record.exit_status not in REPLAYABLE:
        return [f"{record.exit_status}, which says nothing about the workload"]
    return [] if record.request_fingerprint is not None else ["its request was not recorded"]


def read_kept(file: Path) -> TrialResult | None:
    """The record in a trial file that may stand for the trial, if that is still the same request."""
    record = read_record(file)
    return None if record is None or reasons_against(record) else record


def retitle(file: Path, trial_id: str) -> None:
    """Write the name that a trial has in this plan into its file, where it is another one; nothing else changes.

    Raises:
        OSError: the file cannot be read or written.
    """
    content = _load(file)
    if content["trial_id"] != trial_id:
        # As it was read, and not through the model, which leaves out what it does not know.
        write_json(file, {**content, "trial_id": trial_id})


def move_flat_files(results: Path, workload: str) -> None:
    """Move ``<workload>/trial_<T>.json`` and its artifacts into the folder of the cell that the record names.

    Several processes may do so at the same time. When it returns, what could be moved has been, by one of them.
    """
    for file in sorted((results / identifier(workload)).glob("trial_*.json")):
        record = read_record(file)
        if record is not None:
            _move(file, file.parent / identifier(record.cell))


def _move(file: Path, cell: Path) -> None:
    """Move a trial to its cell, unless something else is there. The file goes last, so that a move can be completed."""
    stem = file.with_suffix("")
    folders = [stem, *sorted(file.parent.glob(f"{glob.escape(stem.name)}.rank_*"))]
    # The target first: of two processes, the slower one finds the source gone then.
    if (cell / file.name).exists() or any((cell / it.name).exists() and it.exists() for it in folders):
        return
    cell.mkdir(exist_ok=True)
    for path in [*folders, file]:
        with contextlib.suppress(FileNotFoundError):  # there are no artifacts, or another process was faster
            path.rename(cell / path.name)


def _load(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
