"""What pytest loads at every start: options, fixtures, and the hooks that find out whether there are trials.

All others are in ``trial_hooks`` and ``report_hooks``, which are imported and registered when there is an option, a
workload file, or a test that starts trials. So nothing heavy is imported here, and no test that runs calls any of it.
Nor are small modules: pytest loads those of plugins with a loader of its own, which takes 0.2 ms for each.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plugin.fixtures import (  # noqa: F401  (found by name)
    aorta_env,
    aorta_extra_env,
    aorta_run,
    aorta_torchrun,
    aorta_trial,
)
from pytest_aorta.plugin.options import add_options, is_mentioned

if TYPE_CHECKING:
    from pathlib import Path

#: Folders in which recipes were looked for.
_LISTED: pytest.StashKey[set[Path]] = pytest.StashKey()


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
    if getattr(config.option, "lf", False):
        from pytest_aorta.plugin.last_failed import recall

        recall(config)
    _look_at_files(config)
    if is_mentioned(config):
        from pytest_aorta.plugin.late_hooks import register_hooks
        from pytest_aorta.plugin.submission_hooks import register_submission

        register_submission(config)
        from pytest_aorta.plugin.trial_hooks import select

        register_hooks(config)
        if not config.option.help:
            select(config)
    elif any(getattr(config.option, name, None) for name in ("numprocesses", "tx")):  # of xdist
        from pytest_aorta.plugin.controller_hooks import watch_reports

        watch_reports(config)


def _look_at_files(config: pytest.Config) -> None:
    """Look for workloads in the Python files that were given as arguments: those are collected. And for recipes."""
    arguments = " ".join(config.args)
    if ".toml" in arguments:
        from pytest_aorta.plugin.late_hooks import register_hooks

        register_hooks(config)
    if ".py" in arguments or config.option.pyargs:
        from pytest_aorta.plugin.given_texts import may_be_given

        if may_be_given(config):
            from pytest_aorta.plugin.given_files import register_files

            register_files(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all xdist workers the same name of the run in the history; ``trial_hooks`` says more, if it is there."""
    from pytest_aorta.plugin.controller_hooks import introduce

    introduce(node)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Look for recipes, once in each folder and not at each of its files: of these there may be thousands."""
    if isinstance(collector, pytest.Session) and ".toml" in " ".join(collector.config.args):
        _register_recipes(collector.config)
    if not isinstance(collector, pytest.Directory):
        return
    listed = collector.config.stash.setdefault(_LISTED, set())
    if collector.path in listed:  # pytest lists a folder again for each of its files that is an argument
        return
    listed.add(collector.path)
    if _may_have_recipes(collector):
        _register_recipes(collector.config)


def _may_have_recipes(folder: pytest.Directory) -> bool:
    """Whether a recipe may be among the files that a folder has collected."""
    if type(folder) not in (pytest.Dir, pytest.Package):  # those of other plugins collect what they like
        return True
    try:
        names = os.listdir(folder.path)
    except OSError:
        return False
    if "workflow.toml" in names and folder.session.isinitpath(folder.path / "workflow.toml"):
        return True
    return "aorta.toml\n" in "\n".join([*names, ""])  # of a name's end, faster than one comparison for each


def _register_recipes(config: pytest.Config) -> None:
    """Have the names of files compared with those of recipes."""
    import pytest_aorta.plugin.recipe_hooks as recipe_hooks  # "from" takes what a nested run of pytest has left

    if not config.pluginmanager.has_plugin(recipe_hooks.NAME):
        config.pluginmanager.register(recipe_hooks, recipe_hooks.NAME)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take ``aorta_trial`` run once per trial of every cell."""
    # Called for every test function that is collected: most are through here.
    if "aorta_run" in metafunc.fixturenames or metafunc.definition.own_markers:
        _generate_trials(metafunc)


def _generate_trials(metafunc: pytest.Metafunc) -> None:
    """Of a test that may have to do with trials."""
    is_marked = metafunc.definition.get_closest_marker("aorta") is not None
    if is_marked or "aorta_run" in metafunc.fixturenames:
        from pytest_aorta.plugin.late_hooks import register_hooks

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
