"""What pytest loads at every start: options, fixtures, and the hooks that find out whether there are trials.

All others are in ``trial_hooks`` and ``report_hooks``, which are imported and registered when there is an option, a
workload file, or a test that starts trials. So nothing heavy is imported here, and no test that runs calls any of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.plugin.fixtures import (  # noqa: F401  (found by name)
    aorta_env,
    aorta_extra_env,
    aorta_run,
    aorta_torchrun,
    aorta_trial,
)
from pytest_aorta.plugin.late_hooks import TRIALS, register_hooks
from pytest_aorta.plugin.options import add_options, is_mentioned
from pytest_aorta.plugin.xdist_roles import STAMP, is_controller


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the hooks of trials where these are asked for already."""
    config.addinivalue_line(
        "markers",
        "aorta(trials=, mitigations=, environments=, timeout=): run the test, which takes the fixture aorta_trial, "
        "once per trial of every cell. Every trial item carries this marker.",
    )
    if any(argument.endswith("]") for argument in config.args):
        from pytest_aorta.plugin.items.discovery import from_root

        config.args = from_root(config.args, config.invocation_params.dir, config.rootpath)
    if is_mentioned(config):
        from pytest_aorta.plugin.trial_hooks import select

        register_hooks(config)
        if not config.option.help:
            select(config)
    elif is_controller(config) or "RANK" in os.environ:
        _look_for_trials(config)


def _look_for_trials(config: pytest.Config) -> None:
    """Register the hooks of trials in a process that needs them before it has collected a trial, or collects none."""
    given = [Path(argument.partition("::")[0]) for argument in config.args]
    files = [config.invocation_params.dir / path for path in given if path.suffix == ".py"]
    if files:
        from pytest_aorta.plugin.items.discovery import workload_classes

        if any(map(workload_classes, files)):
            register_hooks(config)
            return
    if is_controller(config):
        from pytest_aorta.plugin.controller_hooks import ControllerHooks

        config.pluginmanager.register(ControllerHooks(config), "aorta_controller")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all xdist workers the same name of the run in the history; ``trial_hooks`` says more, if it is there."""
    if not node.config.pluginmanager.has_plugin(TRIALS):
        from pytest_aorta.workspace.history import stamp

        node.workerinput["aorta"] = {"stamp": node.config.stash.setdefault(STAMP, stamp())}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take ``aorta_trial`` run once per trial of every cell."""
    if "aorta_run" in metafunc.fixturenames or metafunc.definition.own_markers:
        takes_trial = "aorta_trial" in metafunc.fixturenames
        if takes_trial or metafunc.definition.get_closest_marker("aorta") is not None:
            from pytest_aorta.plugin.ordinary_tests.marked_tests import checked_marker, parametrize

            register_hooks(metafunc.config, late=True)
            given = checked_marker(metafunc)
            if takes_trial:
                parametrize(metafunc, given)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """A file that was given as a path and has Workload classes but no tests is not imported here."""
    return _workload_file(module_path, parent, with_tests=False)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """The Workload classes of a test file that was given as a path; pytest collects its tests."""
    return _workload_file(file_path, parent, with_tests=True) if file_path.suffix == ".py" else None


def _workload_file(path: Path, parent: pytest.Collector, *, with_tests: bool) -> pytest.Module | None:
    """A collector for the Workload classes of a given file, if it has some, and tests as ``with_tests`` says."""
    if not parent.session.isinitpath(path):
        return None
    from pytest_aorta.plugin.items.discovery import has_workloads

    if not has_workloads(path, with_tests=with_tests):
        return None
    from pytest_aorta.plugin.items.collection import WorkloadFile

    register_hooks(parent.config, late=True)
    found: pytest.Module = WorkloadFile.of(parent, path)
    return found
