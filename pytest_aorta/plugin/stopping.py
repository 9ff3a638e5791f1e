"""What ends trials before their number does: a decision on their cell, or the end of the time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plugin import decisions_of_controller, is_controller, is_of_recipe
from pytest_aorta.plugin.compat import SkippedItem
from pytest_aorta.runtime.resources.used_folders import UsedFolder, make_own
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.workspace.atomic import locked, write_json

if TYPE_CHECKING:
    from pytest_aorta.plan import Selection
    from pytest_aorta.trials.spec import TrialSpec


_FILE = "stopped_cells.json"


def cell_of(spec: TrialSpec) -> CellKey:
    return CellKey(spec.workload.name, spec.cell)


_CLOCK = "clock"


class Rounds:
    """Which rounds may be run. One that has begun is completed; none begins when the time is over.

    ``seconds`` count from the first trial that is really run; ``folder``: that the xdist workers share.
    """

    def __init__(self, seconds: float, folder: Path | None = None) -> None:
        self.seconds = seconds
        self._folder = folder
        self._begun: set[str] = set()
        self._ends_at: float | None = None

    def begin(self, name: str) -> bool:
        """Whether a trial of this round may be run; the first one of a round begins it."""
        if name in self._begun:
            return True
        if self._folder is None:
            may_begin = self._is_in_time()
        else:
            # What another worker has begun in time must not be missed, nor may one begin after another has given up.
            with locked(self._folder):
                mark = self._folder / f"round-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
                in_time = self._is_in_time()
                may_begin = mark.exists() or in_time
                if may_begin:
                    mark.touch()
        if may_begin:
            self._begun.add(name)
        return may_begin

    def _is_in_time(self) -> bool:
        now = time.monotonic()
        if self._ends_at is None:
            clock = None if self._folder is None else self._folder / _CLOCK
            self._ends_at = float(clock.read_text()) if clock is not None and clock.exists() else now + self.seconds
            if clock is not None:
                clock.write_text(repr(self._ends_at))
        return now < self._ends_at


class NotNeeded(SkippedItem):
    """Skips an item whose trial is not to be started."""


class Stopping:
    """Of one run, which may have several processes."""

    def __init__(self, config: pytest.Config, selection: Selection, shared: Callable[[], Path] | None = None) -> None:
        self._config = config
        self._shared = shared
        self._selection = selection
        self._may_end_early = selection.may_end_early
        self._decided: dict[CellKey, str] = {}
        #: Gives the cells that were decided before this run, and why.
        self.decided_before: Callable[[], Mapping[CellKey, str]] = dict
        #: Whether no trial is skipped: other nodes of a job run the same trials, and would wait for this one.
        self.skips_nothing = False
        #: Number and time of the file that they were read from.
        self._seen: tuple[int, int] | None = None

    @cached_property
    def _used(self) -> UsedFolder:
        return UsedFolder(self._shared or make_own)

    @cached_property
    def folder(self) -> Path | None:
        """Private to the run, where several processes take part; ``None`` on a host that does not have it."""
        if not self._may_end_early:
            return None
        if self._shared is not None or is_controller(self._config):
            return self._used.path
        shared = decisions_of_controller(self._config).get("folder")
        return Path(shared) if shared and Path(shared).is_dir() else None

    @cached_property
    def rounds(self) -> Rounds | None:
        """``None`` without a time in ``--aorta-stop``."""
        duration = self._selection.stop.seconds
        return None if duration is None else Rounds(duration, self.folder)

    def publish(self, reasons: Mapping[CellKey, str]) -> None:
        """Say to all processes of which cells no more trials are needed, and why."""
        self._decided = dict(reasons)
        if self.folder is not None:
            write_json(self.folder / _FILE, [{**vars(key), "reason": reason} for key, reason in reasons.items()])

    def decided(self, key: CellKey) -> str | None:
        """Why no more trials of a cell are needed; ``None`` where they are."""
        if self.skips_nothing:
            return None
        if self.folder is not None and self._selection.stop.ends_cells:
            with contextlib.suppress(FileNotFoundError):  # nothing was decided yet
                status = os.stat(self.folder / _FILE)
                if (seen := (status.st_ino, status.st_mtime_ns)) != self._seen:
                    found: list[dict[str, Any]] = json.loads((self.folder / _FILE).read_text(encoding="utf-8"))
                    reasons = [each.pop("reason") for each in found]
                    self._decided = {CellKey(**each): reason for each, reason in zip(found, reasons, strict=True)}
                    self._seen = seen
        return self._decided.get(key) or self.decided_before().get(key)

    def reason(self, item: pytest.Item, key: CellKey) -> str | None:
        """Why the trial of an item, which has no result yet, is not to be started; ``None`` where it is."""
        if not self._may_end_early:
            return None
        found = self.decided(key)
        if found is None and self.rounds is not None and not self.rounds.begin(round_of(item) or ""):
            return "the time is over (--aorta-stop)"
        return found

    def check(self, item: pytest.Item, key: CellKey) -> None:
        reason = self.reason(item, key)
        if reason is not None:
            raise NotNeeded(reason)

    def close(self) -> None:
        """Remove the folder, in the process that has made it."""
        used: UsedFolder | None = self.__dict__.get("_used")
        if used is not None:
            used.close()


def longrepr_of_skip(item: pytest.Item, error: NotNeeded) -> tuple[str, None, str]:
    """As pytest's own: where and why. It shows skips of the same place and reason as one: those of a cell."""
    where = item.nodeid.rpartition("-")[0] + "]" if hasattr(item, "spec") or hasattr(item, "callspec") else item.nodeid
    return where, None, f"Skipped: {error.msg}"


def round_of(item: pytest.Item) -> str | None:
    """The round of a trial item, or of an item of a marked test: the trials with its index of one collector, or test.

    All workloads of a file have their rounds together, each action of a recipe by itself. ``None`` for any other item.
    """
    base = item.nodeid.partition("[")[0]
    spec: TrialSpec | None = getattr(item, "spec", None)
    if spec is not None:
        return f"{base if is_of_recipe(base) else base.rpartition('::')[0]} {spec.trial_index}"
    cell = getattr(item, "callspec", None) and item.callspec.params.get("aorta_trial")  # type: ignore[attr-defined]
    return f"{base} {cell.index}" if cell else None
