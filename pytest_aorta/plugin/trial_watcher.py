"""What sees trials start and finish, apart from what keeps their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pytest_aorta.launch.submitted import SlotTrial
    from pytest_aorta.triage.facts import TrialFacts
    from pytest_aorta.workspace.paths import TrialPaths


class TrialWatcher(Protocol):
    """Called in the process that owns the reports."""

    def trial_started(self, trial: SlotTrial, paths: TrialPaths) -> None:
        """A slot is about to start a trial; called on its thread."""

    def trial_finished(self, facts: TrialFacts) -> None:
        """The result of a trial has been written."""


WATCHER = pytest.StashKey[TrialWatcher]()
