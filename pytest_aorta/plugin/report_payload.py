"""What the reports of an item carry to the process that writes the results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.workspace.paths import TrialPaths


@dataclass(frozen=True)
class FinishedTrial:
    """A trial that is over.

    Attributes:
        path: of its file, relative to the results directory.
        result: its record as plain data.
        resumed: whether the file has this record already.
        not_kept: why an earlier result did not stand for it.
    """

    path: str
    result: dict[str, Any]
    resumed: bool = False
    not_kept: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, paths: TrialPaths, record: TrialResult, resumed: bool = False, not_kept: Iterable[str] = ()
    ) -> FinishedTrial:
        """From the trial's record."""
        return cls(str(paths.file), record.to_dict(), resumed, list(not_kept))


@dataclass
class ReportPayload:
    """Attribute ``aorta`` of the reports of an item.

    Attributes:
        exit_status: of the item's trial, as far as known.
        trials: that the item has run.
    """

    exit_status: str | None = None
    trials: list[FinishedTrial] = field(default_factory=list)

    def to_plain(self, *, with_records: bool) -> dict[str, Any]:
        """For a report, which xdist sends from process to process.

        The records as JSON: execnet cannot carry every text, such as a file's name that is no UTF-8.
        """
        records = [vars(trial) for trial in self.trials] if with_records else []
        return {"exit_status": self.exit_status, "records": json.dumps(records)}


def trials_in(payload: Mapping[str, Any]) -> list[FinishedTrial]:
    """The trials of a plain payload."""
    return [FinishedTrial(**record) for record in json.loads(payload["records"])]


PAYLOAD = pytest.StashKey[ReportPayload]()
