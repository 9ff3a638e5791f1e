"""Which part this process has where pytest-xdist distributes the items."""

from __future__ import annotations

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
