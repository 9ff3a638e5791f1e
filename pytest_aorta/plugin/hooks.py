"""What pytest loads at every start: options, fixtures, and the hooks that find out whether there are trials.

All others are in ``trial_hooks`` and ``report_hooks``, which are imported and registered when there is an option, a
workload file, or a test that starts trials. So nothing heavy is imported here, and no test that runs calls any of it.
"""

from __future__ import annotations

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
from pytest_aorta.plugin.xdist_roles import STAMP, is_controller, is_worker, place_under_each


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
    if getattr(config.option, "lf", False) and not is_worker(config):
        from pytest_aorta.plugin.last_failed import recall

        recall(config)
    _look_at_files(config)
    if is_mentioned(config):
        from pytest_aorta.plugin.submission_hooks import register_submission

        register_submission(config)
        from pytest_aorta.plugin.trial_hooks import select

        register_hooks(config)
        if not config.option.help:
            select(config)
    elif is_controller(config) and not config.pluginmanager.has_plugin(TRIALS):
        from pytest_aorta.plugin.controller_hooks import ControllerHooks

        config.pluginmanager.register(ControllerHooks(config), "aorta_controller")


def _look_at_files(config: pytest.Config) -> None:
    """Look for workloads in the Python files that were given as arguments: those are collected. And for recipes."""
    if any(".toml" in argument for argument in config.args):
        register_hooks(config)
    if any(".py" in argument for argument in config.args) or config.option.pyargs:
        from pytest_aorta.plugin.given_files import GivenFiles, given_files

        if files := given_files(config):
            config.pluginmanager.register(GivenFiles(files), "aorta_files")
            register_hooks(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all xdist workers the same name of the run in the history; ``trial_hooks`` says more, if it is there."""
    if not node.config.pluginmanager.has_plugin(TRIALS):
        from pytest_aorta.workspace.history import stamp

        node.workerinput["aorta"] = {
            "stamp": node.config.stash.setdefault(STAMP, stamp()),
            "each": place_under_each(node),
        }


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Recipes: ``aorta.toml`` and ``*.aorta.toml``, and Row's ``workflow.toml`` where it is given itself."""
    name = file_path.name
    if not name.endswith(".toml"):  # most are through here
        return None
    is_own = name == "aorta.toml" or name.endswith(".aorta.toml")
    if not is_own and not (name == "workflow.toml" and parent.session.isinitpath(file_path)):
        return None
    from pytest_aorta.plugin.recipes.recipe_file import RecipeFile

    register_hooks(parent.config, late=True)
    collector: RecipeFile = RecipeFile.from_parent(parent, path=file_path)
    return collector


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take ``aorta_trial`` run once per trial of every cell."""
    starts_trials = "aorta_run" in metafunc.fixturenames
    # Called for every test function that is collected: most are through here.
    if not starts_trials and not metafunc.definition.own_markers:
        return
    is_marked = metafunc.definition.get_closest_marker("aorta") is not None
    if starts_trials or is_marked:
        register_hooks(metafunc.config, late=True)
    takes_trial = "aorta_trial" in metafunc.fixturenames
    if takes_trial or is_marked:
        from pytest_aorta.plugin.ordinary_tests.marked_tests import checked_marker, parametrize

        given = checked_marker(metafunc)
        if takes_trial:
            parametrize(metafunc, given)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    """A wrong marker ends a run as a wrong option does."""
    # The argument: sessions of ``pytester.getnode`` have no ``exitstatus``.
    if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED):
        from pytest_aorta.plugin.refusals import has_refused_marker

        if has_refused_marker(session.config):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Where nothing was collected, say what was nearly a workload, and what it lacks."""
    if exitstatus in (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERRUPTED):
        from pytest_aorta.plugin.items.nearly_workloads import lines_of_empty_run

        for line in lines_of_empty_run(terminalreporter, exitstatus, config):
            terminalreporter.write_line(line, red=True)
