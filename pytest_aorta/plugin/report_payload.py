"""What the reports of an item carry to the process that writes the results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.probe.guard import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.workspace.paths import TrialPaths


@dataclass(frozen=True)
class RowKey:
    """What keeps the trials of a test apart from others of the same workload, environment and mitigations.

    Attributes:
        test: node id of the test, without what says which trial of a marked test it is; empty for a trial of a plan.
        options: of the trial, as the test gave them, for the table.
        digest: of all that the test has chosen for the trial, but its environment, mitigations and index.
    """

    test: str = ""
    options: str = ""
    digest: str = ""


@dataclass(frozen=True)
class FinishedTrial:
    """A trial that is over.

    Attributes:
        path: of its file, relative to the results directory.
        result: its record as plain data.
        resumed: whether the file has this record already.
        not_kept: why an earlier result did not stand for it.
        row: of the table, besides workload and cell.
    """

    path: str
    result: dict[str, Any]
    resumed: bool = False
    not_kept: list[str] = field(default_factory=list)
    row: RowKey = RowKey()

    @classmethod
    def of(
        cls,
        paths: TrialPaths,
        record: TrialResult,
        resumed: bool = False,
        not_kept: Iterable[str] = (),
        row: RowKey | None = None,
    ) -> FinishedTrial:
        """From the trial's record, which then names the test."""
        if row is not None and row.test:
            from pytest_aorta.trials.result import StartedBy  # pydantic, which a record needs anyway

            started_by = StartedBy(node_id=printable(row.test), options=printable(row.options), digest=row.digest)
            record = record.model_copy(update={"test": started_by})
        return cls(str(paths.file), record.to_dict(), resumed, list(not_kept), row or RowKey())


@dataclass
class ReportPayload:
    """Attribute ``aorta`` of the reports of an item.

    Attributes:
        exit_status: of the item's trial, as far as known.
        trials: that the item has run.
        notes: lines for the summary.
    """

    exit_status: str | None = None
    trials: list[FinishedTrial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_plain(self, *, with_records: bool) -> dict[str, Any]:
        """For a report, which xdist sends from process to process.

        The records as JSON: execnet cannot carry every text, such as a file's name that is no UTF-8.
        """
        records = [{**vars(trial), "row": vars(trial.row)} for trial in self.trials] if with_records else []
        notes = self.notes if with_records else []
        return {"exit_status": self.exit_status, "records": json.dumps(records), "notes": json.dumps(notes)}


def trials_in(payload: Mapping[str, Any]) -> list[FinishedTrial]:
    """The trials of a plain payload."""
    return [FinishedTrial(**{**record, "row": RowKey(**record["row"])}) for record in json.loads(payload["records"])]


def notes_in(payload: Mapping[str, Any]) -> list[str]:
    """The lines for the summary of a plain payload."""
    found: list[str] = json.loads(payload["notes"])
    return found


PAYLOAD = pytest.StashKey[ReportPayload]()
