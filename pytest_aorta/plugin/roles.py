"""Which part this process has where pytest-xdist distributes the items."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_aorta.plugin import REPORTS as REPORTS
from pytest_aorta.plugin import TRIALS as TRIALS

#: Name of the run in the history, where it was given to workers before there was a trial.
STAMP = pytest.StashKey[str]()


def is_worker(config: pytest.Config) -> bool:
    """Whether the items come from a controller, which also writes the results."""
    return hasattr(config, "workerinput")


def is_controller(config: pytest.Config) -> bool:
    """Whether the items go to workers."""
    return bool(config.getoption("numprocesses", None) or config.getoption("tx", None))


def give_out_one_by_one(config: pytest.Config) -> None:
    """Have xdist's workers take items in their order, and not long parts of the list, where nothing else was asked."""
    if is_controller(config) and getattr(config.option, "maxschedchunk", 0) is None:
        config.option.maxschedchunk = 1


def decisions_of_controller(config: pytest.Config) -> Mapping[str, Any]:
    """What the controller has sent to this worker, see ``pytest_configure_node``; empty in any other process."""
    decided: Mapping[str, Any] = getattr(config, "workerinput", {}).get("aorta", {})
    return decided


def worker_of_workers(config: pytest.Config) -> tuple[int, int]:
    """The number of this xdist worker, from 0, and of how many; 0 and 1 in any other process."""
    found: Mapping[str, Any] = getattr(config, "workerinput", {})
    workers = int(found.get("workercount", 1))
    # One that takes the place of a crashed worker has a higher number.
    digits = "".join(filter(str.isdigit, found.get("workerid", "")))
    return int(digits or 0) % workers, workers


#: Why trials are refused under ``--dist each``.
NOT_EACH = "--dist each would run every trial in each worker; for more trials: --aorta-trials N"


def is_each(node: Any) -> bool:
    """Whether each of xdist's workers runs every item."""
    return bool(node.config.getoption("dist", "no") == "each")


def introduce(node: Any) -> None:
    """Tell a worker the name of the run in the history, the same to all, where nothing else does.

    A run without trials may have ``--dist each``; a worker that comes to a trial all the same refuses it.
    """
    if not node.config.pluginmanager.has_plugin(TRIALS):
        from pytest_aorta.workspace.history import stamp

        node.workerinput["aorta"] = {"stamp": node.config.stash.setdefault(STAMP, stamp()), "each": is_each(node)}


#: Modes that give whole groups to a worker, and the names of their schedulers in ``xdist.scheduler``.
_GROUPING = {"loadscope": "LoadScopeScheduling", "loadfile": "LoadFileScheduling", "loadgroup": "LoadGroupScheduling"}

#: Items that a worker has to know of to run the first of them, as long as more may come.
_PAIR = 2


class _OnlyOnce:
    """An item that has killed its worker is not run again. Stands before the class of xdist's scheduler.

    xdist 3.8 gives the rest of a dead worker's group to another one, and with it the item that the worker has died of:
    the next worker dies as well, until none may be started any more. It also gives away groups that were done, and
    single items to a worker that waits for a second one: then the run hangs. ``--dist load`` and ``worksteal`` do none
    of this. ``assigned_work`` is what xdist calls that which was given to a worker.
    """

    assigned_work: dict[Any, dict[str, dict[str, bool]]]
    workqueue: dict[str, dict[str, bool]]

    def schedule(self) -> None:
        super().schedule()  # type: ignore[misc]
        self._complete_pairs()

    def remove_node(self, node: Any) -> str | None:
        groups = self.assigned_work[node]
        pending = ((group, nodeid) for group in groups.values() for nodeid, is_done in group.items() if not is_done)
        group, lost = next(pending, ({}, None))
        if lost is not None:
            group[lost] = True
        for name in [name for name, group in groups.items() if all(group.values())]:
            del groups[name]  # what is left of the groups is given to others
        super().remove_node(node)  # type: ignore[misc]
        self._complete_pairs()
        return lost

    def _complete_pairs(self) -> None:
        # A worker begins an item when it knows the next one: where it has one only, that may be the last event.
        for node, groups in self.assigned_work.items():
            while self.workqueue and not node.shutting_down and self._pending_of(groups) < _PAIR:  # type: ignore[attr-defined]
                self._assign_work_unit(node)  # type: ignore[attr-defined]


def group_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler for ``--dist``; ``None`` for a mode without groups."""
    name = _GROUPING.get(config.getoption("dist"))
    if name is None:
        return None
    of_xdist: type[Any] = getattr(importlib.import_module("xdist.scheduler"), name)
    return type(name, (_OnlyOnce, of_xdist), {})(config, log)
