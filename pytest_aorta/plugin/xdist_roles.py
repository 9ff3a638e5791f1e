"""Which part this process has where pytest-xdist distributes the items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

#: Name of the run in the history, where it was given to workers before there was a trial.
STAMP = pytest.StashKey[str]()

#: In a controller: what xdist calls this run.
TEST_RUN = pytest.StashKey[str | None]()


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
    """What the controller has sent to this worker, see ``pytest_configure_node``; empty where there is none."""
    decided: Mapping[str, Any] = getattr(config, "workerinput", {}).get("aorta", {})
    return decided


def test_run_of(config: pytest.Config) -> str | None:
    """What xdist calls this run, in all of its workers; ``None`` in any other process."""
    found: Mapping[str, Any] = getattr(config, "workerinput", {})
    return found.get("testrunuid")


def test_run_everywhere(config: pytest.Config) -> str | None:
    """The same in the controller as well; ``None`` without xdist."""
    return test_run_of(config) or config.stash.get(TEST_RUN, None)


def place_under_each(node: Any) -> tuple[int, int] | None:
    """Which of xdist's workers a node is, and of how many, where each of them runs every item; else ``None``.

    One that takes the place of a crashed worker has that one's number. Names of workers may have any digits, or none.
    """
    if node.config.getoption("dist", "no") != "each":
        return None
    specs = node.nodemanager.specs
    return next(number for number, spec in enumerate(specs) if spec is node.gateway.spec), len(specs)


def worker_of_workers(config: pytest.Config) -> tuple[int, int]:
    """The number of this xdist worker, from 0, and of how many; 0 and 1 in any other process."""
    found: Mapping[str, Any] = getattr(config, "workerinput", {})
    workers = int(found.get("workercount", 1))
    # One that takes the place of a crashed worker has a higher number.
    digits = "".join(filter(str.isdigit, found.get("workerid", "")))
    return int(digits or 0) % workers, workers
