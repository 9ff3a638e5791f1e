"""What a resumed run finds: results that may stand for a trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.workspace.atomic import write_json

if TYPE_CHECKING:
    from pytest_aorta.trials.result import TrialResult

#: Statuses that depend on the workload; with any other, a trial is run again.
KEPT = ("ok", "workload_failed", "timeout")


def read_record(file: Path) -> TrialResult | None:
    """The record in a trial file; ``None`` when there is none, or it is torn."""
    from pytest_aorta.trials.result import TrialResult  # pydantic, which the writer does without until here

    try:
        return TrialResult.from_dict(_load(file))
    except (OSError, ValueError, RecursionError):
        return None


def reasons_against(record: TrialResult) -> list[str]:
    """Why a record cannot stand for any trial; empty where it may."""
    if record.exit_status not in KEPT:
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


def _load(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
