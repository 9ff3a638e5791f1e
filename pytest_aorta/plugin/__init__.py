"""Everything that imports pytest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

#: What a refused marker is called, after the node id of its test.
MARKER = "@pytest.mark.aorta"

#: Names of the plugins that pytest is given only when there are trials.
TRIALS, REPORTS = "aorta_trials", "aorta_reports"

#: Name of a plugin in the process of a trial that is a test: there, nothing is a trial.
ONE_TEST = "aorta_one_test"

#: Methods of a workload, in the text of its file.
_METHODS = (rb"def\s+setup\b", rb"def\s+run\b")


def may_have_workloads(text: bytes) -> bool:
    """Whether it is worth while to parse a Python file with this text: a workload has a base, or both methods."""
    if b"Workload" in text:
        return True
    # Few texts have both words, and so the expressions need not be compiled.
    return b"setup" in text and b"run" in text and all(re.search(method, text) for method in _METHODS)


#: Of recipes, and of AORTA's sweep recipes, which are read as such.
SUFFIXES = (".toml", ".yaml", ".yml")


def is_of_recipe(nodeid: str) -> bool:
    """Whether the node id is that of a recipe, or of an item of one."""
    return nodeid.partition("::")[0].endswith(SUFFIXES)


# Which part this process has where pytest-xdist distributes the items

#: Name of the run in the history, where it was given to workers before there was a trial.
STAMP = pytest.StashKey[str]()

#: Why trials are refused under ``--dist each``.
NOT_EACH = "--dist each would run every trial in each worker; for more trials: --aorta-trials N"


def is_worker(config: pytest.Config) -> bool:
    """Whether the items come from a controller, which also writes the results."""
    return hasattr(config, "workerinput")


def is_controller(config: pytest.Config) -> bool:
    """Whether the items go to workers."""
    return bool(config.getoption("numprocesses", None) or config.getoption("tx", None))


def decisions_of_controller(config: pytest.Config) -> Mapping[str, Any]:
    """What the controller has sent to this worker, see ``pytest_configure_node``; empty in any other process."""
    decided: Mapping[str, Any] = getattr(config, "workerinput", {}).get("aorta", {})
    return decided


def is_each(node: Any) -> bool:
    """Whether each of xdist's workers runs every item."""
    return bool(node.config.getoption("dist", "no") == "each")
