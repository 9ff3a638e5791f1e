"""Trials that are started before pytest has come to their items, so that no slot is idle."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.plugin.report_payload import FinishedTrial

if TYPE_CHECKING:
    from pytest_aorta.launch.slot_trial import RunningTrial
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
        ahead: how many trials are started ahead at most; ``None`` for all. Which ones are needed may depend on others.
        wanted: asked just before a trial is started, where there is such a bound; whether it is needed.
    """

    def __init__(
        self,
        find: Callable[[TrialSpec, TrialPaths, float | None], RunningTrial | None],
        start: Callable[[TrialSpec, TrialPaths, float | None], RunningTrial],
        results: Path,
        ahead: int | None = None,
        wanted: Callable[[QueuedTrial], bool] = lambda trial: True,
    ) -> None:
        self._find = find
        self._start = start
        self._results = results
        self._ahead = ahead
        self._wanted = wanted
        #: Trials that are not started yet, by node id.
        self._queue: dict[str, QueuedTrial] = {}
        #: Trials that were started, or need not be.
        self._waiting: dict[str, tuple[RunningTrial, TrialPaths]] = {}
        #: Trials whose items did not run, and that are being ended.
        self._dropped: list[tuple[RunningTrial, TrialPaths]] = []
        #: Whether ``launch`` has been called.
        self.launched = False

    def launch(self, trials: Iterable[QueuedTrial]) -> None:
        """Start the trials, in this order."""
        self.launched = True
        # All are looked for before the first one starts: to compare requests takes a slot, which trials would occupy.
        found = [(trial, self._find(trial.spec, trial.paths, trial.deadline)) for trial in trials]
        for trial, earlier in found:
            if earlier is not None:
                self._waiting[trial.nodeid] = (earlier, trial.paths)
            else:
                self._queue[trial.nodeid] = trial
        self._refill()

    def _refill(self) -> None:
        """Start as many trials of the queue as may be ahead."""
        ahead = sum(not running.resumed for running, _ in self._waiting.values()) if self._ahead is not None else 0
        while self._queue and (self._ahead is None or ahead < self._ahead):
            trial = self._queue.pop(next(iter(self._queue)))
            if self._wanted(trial):
                self._waiting[trial.nodeid] = (self._start(trial.spec, trial.paths, trial.deadline), trial.paths)
                ahead += 1

    def take(self, nodeid: str) -> RunningTrial | None:
        """The trial of an item that pytest has come to."""
        found = self._waiting.pop(nodeid, None)
        self._queue.pop(nodeid, None)
        self._refill()
        return None if found is None else found[0]

    def is_running(self, nodeid: str) -> bool:
        """Whether the trial of an item has begun, and may be over."""
        return nodeid in self._waiting and self._waiting[nodeid][0].started

    def withdraw(self, needed: Callable[[TrialSpec], bool]) -> None:
        """Cancel trials that are not needed any more, and have not begun."""
        for nodeid, (running, _) in list(self._waiting.items()):
            if not running.started and not running.resumed and not needed(running.spec):
                self.drop(nodeid)

    def drop(self, nodeid: str) -> None:
        """End the trial of an item that is over and has not taken it: the item was skipped."""
        self._queue.pop(nodeid, None)
        found = self._waiting.pop(nodeid, None)
        if found is not None:
            found[0].interrupt("its item was not run")
            self._dropped.append(found)
            self._refill()

    def interrupt(self, why: str) -> None:
        """Cancel what has not started, end what runs; those first that would start instead of others."""
        self._queue.clear()
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
