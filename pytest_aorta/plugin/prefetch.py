"""Trials that are started before pytest has come to their items, so that no slot is idle."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.plugin.report_payload import FinishedTrial

if TYPE_CHECKING:
    from pytest_aorta.launch.submitted import RunningTrial
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths


@dataclass(frozen=True)
class QueuedTrial:
    """The trial of an item that pytest has not come to yet; ``deadline`` in seconds."""

    nodeid: str
    spec: TrialSpec
    paths: TrialPaths
    deadline: float | None


class Prefetcher:
    """The trials of items that pytest has not come to yet, by node id.

    Args:
        find: gives the earlier result of a trial, if it is not to be run.
        start: starts a trial as soon as there is a slot.
        results: the results directory.
    """

    def __init__(
        self,
        find: Callable[[TrialSpec, TrialPaths, float | None], RunningTrial | None],
        start: Callable[[TrialSpec, TrialPaths, float | None], RunningTrial],
        results: Path,
    ) -> None:
        self._find = find
        self._start = start
        self._results = results
        self._waiting: dict[str, tuple[RunningTrial, TrialPaths]] = {}
        #: Trials whose items did not run, and that are being ended.
        self._dropped: list[tuple[RunningTrial, TrialPaths]] = []
        #: Whether ``launch`` has been called.
        self.launched = False

    def launch(self, trials: Iterable[QueuedTrial]) -> None:
        """Start all trials, in this order."""
        self.launched = True
        # All are looked for before the first one starts: to compare requests takes a slot, which trials would occupy.
        found = [(trial, self._find(trial.spec, trial.paths, trial.deadline)) for trial in trials]
        for trial, earlier in found:
            running = earlier or self._start(trial.spec, trial.paths, trial.deadline)
            self._waiting[trial.nodeid] = (running, trial.paths)

    def take(self, nodeid: str) -> RunningTrial | None:
        """The trial of an item that pytest has come to."""
        found = self._waiting.pop(nodeid, None)
        return None if found is None else found[0]

    def drop(self, nodeid: str) -> None:
        """End the trial of an item that is over and has not taken it: the item was skipped."""
        found = self._waiting.pop(nodeid, None)
        if found is not None:
            found[0].interrupt("its item was not run")
            self._dropped.append(found)

    def interrupt(self, why: str) -> None:
        """Cancel what has not started, end what runs; those first that would start instead of others."""
        for trial, _ in reversed(self._waiting.values()):
            trial.interrupt(why)

    def close(self, why: str) -> list[FinishedTrial]:
        """Interrupt all trials whose items will not run; the records of those that had started."""
        self.interrupt(why)
        waiting, self._waiting = self._waiting, {}
        finished = []
        for trial, paths in waiting.values():
            record = trial.finish()
            if trial.started:
                finished.append(FinishedTrial.of(paths, record))
        for trial, paths in self._dropped:
            trial.finish()
            if trial.started and not paths.file_in(self._results).exists():
                shutil.rmtree(paths.folder_in(self._results), ignore_errors=True)
        return finished
