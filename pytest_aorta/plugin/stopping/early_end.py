"""What ends trials before their number does: a decision, or the end of a duration."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.plugin.compat import SkippedItem, tear_down_before
from pytest_aorta.plugin.stopping.decided_cells import DecidedCells
from pytest_aorta.plugin.stopping.rounds import Rounds
from pytest_aorta.plugin.xdist_roles import decisions_of_controller, is_controller
from pytest_aorta.runtime.resources.used_folders import UsedFolder, make_own

if TYPE_CHECKING:
    from pytest_aorta.plan import Selection
    from pytest_aorta.triage.facts import CellKey
    from pytest_aorta.trials.spec import TrialSpec


class NotNeeded(SkippedItem):
    """Skips an item whose trial is not to be started."""


class Stopping:
    """Of one run, which may have several processes.

    Args:
        config: of pytest.
        selection: what the user asked for.
        shared: finds the folder of an action of a recipe, which has several processes, in each of them.
    """

    def __init__(self, config: pytest.Config, selection: Selection, shared: Callable[[], Path] | None = None) -> None:
        self._config = config
        self._shared = shared
        self._selection = selection

    @cached_property
    def _used(self) -> UsedFolder:
        return UsedFolder(self._shared or make_own)

    @cached_property
    def folder(self) -> Path | None:
        """Private to the run, where several processes take part; ``None`` on a host that does not have it."""
        if not self._selection.may_end_early:
            return None
        if self._shared is not None or is_controller(self._config):
            return self._used.path
        shared = decisions_of_controller(self._config).get("folder")
        return Path(shared) if shared and Path(shared).is_dir() else None

    @cached_property
    def decided(self) -> DecidedCells:
        """Empty without ``--aorta-stop=decided``."""
        return DecidedCells(self.folder if self._selection.until_decided else None)

    @cached_property
    def rounds(self) -> Rounds | None:
        """``None`` without a time in ``--aorta-stop``."""
        duration = self._selection.duration
        return None if duration is None else Rounds(duration, self.folder)

    def reason(self, key: CellKey, round_name: str) -> str | None:
        """Why a trial that has no result yet is not to be started; ``None`` where it is."""
        found = self.decided.reason(key)
        if found is None and self.rounds is not None and not self.rounds.begin(round_name):
            return "the time is over (--aorta-stop)"
        return found

    def check(self, key: CellKey, round_name: str) -> None:
        """Skip the test whose trial is not to be started."""
        reason = self.reason(key, round_name)
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


def round_name(where: str, index: int) -> str:
    """Of the trials with this index of one collector, or marked test."""
    return f"{where} {index}"


def where_of(nodeid: str) -> str:
    """What has rounds of its own: all workloads of a file together, each action of a recipe by itself."""
    base = nodeid.partition("[")[0]
    return base if ".toml::" in base else base.rpartition("::")[0]


def round_of(item: pytest.Item) -> str | None:
    """The round of a trial item, or of an item of a marked test; ``None`` for any other."""
    spec: TrialSpec | None = getattr(item, "spec", None)
    if spec is not None:
        return round_name(where_of(item.nodeid), spec.trial_index)
    cell = getattr(item, "callspec", None) and item.callspec.params.get("aorta_trial")  # type: ignore[attr-defined]
    return round_name(item.nodeid.partition("[")[0], cell.index) if cell else None


def omit(item: pytest.Item, nextitem: pytest.Item | None, rounds: Rounds) -> bool:
    """Whether an item is not run, and not reported, because its round has not begun and the time is over."""
    name = round_of(item)
    if name is None or rounds.begin(name):
        return False
    tear_down_before(item, nextitem)
    return True
