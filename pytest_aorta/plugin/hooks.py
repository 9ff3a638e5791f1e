"""What pytest loads at every start: options, fixtures, and the hooks that find out whether there are trials.

All others are in ``trial_hooks`` and ``report_hooks``, which are imported and registered when there is an option, a
workload file, or a test that starts trials. So nothing heavy is imported here, and no test that runs calls any of it.
Nor are small modules: pytest loads those of plugins with a loader of its own, which takes 0.2 ms for each.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plugin import MARKER, ONE_TEST, SUFFIXES, TRIALS, may_have_workloads
from pytest_aorta.plugin.options import add_options, is_mentioned, refuse_mistyped

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from pytest_aorta.plugin.ordinary_tests import MarkedTrial, RunTrial
    from pytest_aorta.plugin.torchrun_fixture import RunTorchrun
    from pytest_aorta.probe.collect import EnvSnapshot


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Suggest an option for one that nobody has, a conftest.py included."""
    refuse_mistyped(parser, args)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the hooks of trials where these are asked for already."""
    config.addinivalue_line(
        "markers",
        "aorta(trials=, mitigations=, environments=, timeout=): run the test once per trial of every cell, each time "
        "in a process of its own, or where its fixture aorta_trial is called. Every trial item carries this marker.",
    )
    if config.pluginmanager.has_plugin(ONE_TEST):
        return
    for name, text in getattr(config, "workerinput", {}).get("aorta_settings", {}).items():
        setattr(config.option, f"aorta_{name}", text)
    _look_at_files(config)
    if is_mentioned(config):
        from pytest_aorta.plugin.registration import register_hooks

        register_hooks(config)
        if not config.option.help:
            from pytest_aorta.plugin.trial_hooks import select

            select(config)
    elif any(getattr(config.option, name, None) for name in ("numprocesses", "tx")):  # of xdist
        from pytest_aorta.plugin.registration import watch_reports

        watch_reports(config)


def _look_at_files(config: pytest.Config) -> None:
    arguments = " ".join(config.args)
    if any(suffix in arguments for suffix in SUFFIXES):
        from pytest_aorta.plugin.registration import register_hooks

        register_hooks(config)
    if (".py" in arguments or config.option.pyargs) and _may_be_given(config):
        from pytest_aorta.plugin.given_files import register_files

        register_files(config)


def _may_be_given(config: pytest.Config) -> bool:
    here = config.invocation_params.dir
    if config.option.pyargs or (here != config.rootpath and any(argument.endswith("]") for argument in config.args)):
        return True  # they may have to be found elsewhere
    for file in {argument.partition("::")[0] for argument in config.args}:
        if file.endswith(".py"):
            with contextlib.suppress(OSError, ValueError), open(os.path.join(here, file), "rb", buffering=0) as opened:
                if may_have_workloads(opened.read()):
                    return True
    return False


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all xdist workers the same name of the run in the history; ``trial_hooks`` says more, if it is there."""
    from pytest_aorta.plugin.roles import introduce

    introduce(node)
    # A worker knows what they have become only.
    node.workerinput["aorta_arguments"] = [str(argument) for argument in node.config.invocation_params.args]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Recipes: ``aorta.toml`` and ``*.aorta.toml``; Row's and AORTA's where they are given themselves."""
    name = file_path.name
    if not name.endswith(SUFFIXES):  # most are through here
        return None
    if name != "aorta.toml" and not name.endswith(".aorta.toml"):
        if not parent.session.isinitpath(file_path):
            return None
        from pytest_aorta.workflow.finding import is_sweep

        if name != "workflow.toml" and not is_sweep(file_path):
            return None
    from pytest_aorta.plugin.recipes.items import RecipeFile
    from pytest_aorta.plugin.registration import register_hooks

    register_hooks(parent.config, late=True)
    collector: RecipeFile = RecipeFile.from_parent(parent, path=file_path)
    return collector


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take ``aorta_trial`` run once per trial of every cell."""
    # Called for every test function that is collected: most are through here.
    if "aorta_run" in metafunc.fixturenames or "aorta" in metafunc.definition.keywords:
        _generate_trials(metafunc)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """Trials in the place of tests that are to have some."""
    report = yield
    has_trials = collector.config.pluginmanager.has_plugin(TRIALS)
    if not has_trials and type(collector).__name__ == "UnitTestCase":  # whose methods are no test functions of pytest
        has_trials = _has_marked(collector.config, report.result)
    if not has_trials or not report.passed:
        return report
    from pytest_aorta.plugin.registration import register_hooks
    from pytest_aorta.plugin.tests_as_trials import with_trials

    register_hooks(collector.config, late=True)
    return with_trials(collector, report)


def _has_marked(config: pytest.Config, found: list[Any]) -> bool:
    return not config.pluginmanager.has_plugin(ONE_TEST) and any("aorta" in node.keywords for node in found)


def _generate_trials(metafunc: pytest.Metafunc) -> None:
    if metafunc.config.pluginmanager.has_plugin(ONE_TEST):
        return
    is_marked = metafunc.definition.get_closest_marker("aorta") is not None
    if is_marked or "aorta_run" in metafunc.fixturenames:
        from pytest_aorta.plugin.registration import register_hooks

        register_hooks(metafunc.config, late=True)
    if is_marked or "aorta_trial" in metafunc.fixturenames:
        from pytest_aorta.plugin.ordinary_tests import parametrize

        parametrize(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    """A wrong marker ends a run as a wrong option does."""
    # The argument: sessions of ``pytester.getnode`` have no ``exitstatus``.
    if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED) and _has_refused(session.config):
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def _has_refused(config: pytest.Config) -> bool:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    for report in [] if terminal is None else terminal.stats.get("error", []):
        if isinstance(report, pytest.CollectReport):
            file = report.nodeid.rpartition("/")[2]
            if file.endswith(SUFFIXES):
                return True
            if f": {MARKER}" in str(report.longrepr):  # of a worker's report, xdist sends the text only
                return True
    return False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Where nothing was collected, say what was nearly a workload, and what it lacks."""
    if exitstatus in (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERRUPTED):
        from pytest_aorta.plugin.given_files import lines_of_empty_run

        for line in lines_of_empty_run(terminalreporter, exitstatus, config):
            terminalreporter.write_line(line, red=True)


# Fixtures


@pytest.fixture
def aorta_extra_env() -> dict[str, str]:
    """Variables on top of all others for every trial. Override it in a conftest.py to set them there."""
    return {}


@pytest.fixture
def aorta_run(request: pytest.FixtureRequest, aorta_extra_env: dict[str, str]) -> RunTrial:
    """``aorta_run("gemm", steps=20, mitigations=["tf32_off"])`` runs one trial and returns its TrialResult.

    The trial's failure is in the result, not an exception. Every call leaves a trial file.
    """
    from pytest_aorta.plugin.ordinary_tests import RunTrial
    from pytest_aorta.plugin.registration import register_hooks

    register_hooks(request.config, late=True)  # it may have been asked for by its name, when the test ran already
    return RunTrial(request.node, aorta_extra_env)


@pytest.fixture
def aorta_torchrun(aorta_run: RunTrial) -> RunTorchrun:
    """``aorta_torchrun("train.py", "--steps", "3", nproc=2, timeout=60)`` runs a script under torchrun.

    Returns a TorchrunResult: what the script does is in there, not an exception. Every call leaves a trial file.
    """
    from pytest_aorta.plugin.torchrun_fixture import RunTorchrun

    return RunTorchrun(aorta_run)


@pytest.fixture
def aorta_trial(request: pytest.FixtureRequest, aorta_run: RunTrial) -> MarkedTrial:
    """The trial that this item stands for: ``index``, ``environment``, ``mitigations``; call it to run a workload.

    The number of trials and the axes come from ``@pytest.mark.aorta(...)``, else from the options.
    """
    from pytest_aorta.plugin.ordinary_tests import MarkedTrial

    return MarkedTrial(request.param, aorta_run)


@pytest.fixture(scope="session")
def aorta_env() -> EnvSnapshot:
    """What pytest itself runs on, as trials record it."""
    from pytest_aorta.probe.collect import collect_env

    return collect_env()
