"""What sees trials start and finish, apart from what keeps their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aorta.launch.slot_trial import SlotTrial
    from pytest_aorta.triage.facts import TrialFacts

#: Workload, or action of a recipe, and cell.
CellName = tuple[str, str]


class TrialWatcher(Protocol):
    """Called in the process that owns the reports."""

    def trial_started(self, trial: SlotTrial, file: Path, name: str, cell: CellName) -> None:
        """A slot is about to start a trial, whose file and name are these; called on its thread."""

    def trial_finished(self, facts: TrialFacts, file: Path, cell: CellName) -> None:
        """The result of a trial has been written."""


WATCHER = pytest.StashKey[TrialWatcher]()
