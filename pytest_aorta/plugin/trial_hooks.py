"""The hooks of a session that has trials; see ``hooks`` for when they are registered."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plan import Plan, Selection, trials_of
from pytest_aorta.plugin import NOT_EACH, is_controller, is_each, is_worker
from pytest_aorta.plugin.compat import tear_down_before
from pytest_aorta.plugin.failures import TrialBroken, TrialFailed, add_failed_trials, shown_failure
from pytest_aorta.plugin.options import given_options
from pytest_aorta.plugin.run import (
    NO_ITEM,
    PAYLOAD,
    TEST_TARGET,
    TIMEOUT,
    NotNeeded,
    current_run,
    current_runs,
    ignore_sigterm_from_now_on,
    longrepr_of_skip,
    round_of,
    run_of,
)
from pytest_aorta.plugin.workload_files import GIVEN
from pytest_aorta.registry import WorkloadEntry
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


#: Options that ask for trials of collected tests, if nothing else on the command line has trials.
_ASKING = ("trials", "mitigations", "environment", "stop")


def select(config: pytest.Config) -> None:
    """Read the selection, and find out which trials are to be collected; raises ``pytest.UsageError``."""
    run = run_of(config)
    run.is_mentioned = True
    selection = run.selection
    if selection.may_end_early and is_controller(config) and getattr(config.option, "maxschedchunk", 0) is None:
        config.option.maxschedchunk = 1  # workers take items in their order, and not long parts of the list
    try:
        if selection.replays:
            from pytest_aorta.plugin.collection import choose
            from pytest_aorta.plugin.run_again import read_replays
            from pytest_aorta.workspace.paths import REPLAY

            choose(config, run, read_replays(config, run), REPLAY)
        elif selection.workloads or selection.commands:
            from pytest_aorta.plugin.collection import choose

            if selection.searches:
                from pytest_aorta.plugin.search import search_name, searches_of

                named = {search_name(spec, selection): spec for spec in searches_of(run.plan, selection)}
                choose(config, run, named)
            else:
                choose(config, run, {spec.item_name: spec for spec in run.plan.trials})
        elif not is_worker(config):
            # Names that the options give, which otherwise only a file or a test would look up, or nothing at all.
            default = Selection()
            has_axes = (selection.environments, selection.mitigations) != (default.environments, default.mitigations)
            if selection.registry_files or selection.collect or has_axes:
                trials_of([WorkloadEntry("any", "", "")], replace(selection, trials=1), run.registry)
        run.takes_tests = run.chosen is None and any(name in given_options(config) for name in _ASKING)
    except RequestError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if is_each(node):
        raise pytest.UsageError(NOT_EACH)
    run = run_of(node.config)
    folder = run.stopping.folder
    node.workerinput["aorta"] = {
        "folder": None if folder is None else str(folder),
        "stamp": run.runner.store.stamp,
        "paths": [str(argument) for argument in node.config.args],
        "chosen": None if run.chosen is None else sorted(run.chosen),
    }


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    """Lines on the plan and its shard."""
    run = current_run(config)
    if run is None or config.get_verbosity() < 0:
        return None
    from pytest_aorta.plugin.summary import header

    return header(run)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect a given file with workloads without importing it."""
    if module_path not in parent.config.stash.get(GIVEN, ()):
        return None
    from pytest_aorta.plugin.collection import WorkloadFile  # a run without trials does not need it

    module: pytest.Module = WorkloadFile.of(parent, module_path)
    return module


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep items of this shard that meet the conditions. This comes before ``-k``, so ``-k`` changes no shard."""
    run = current_run(config)
    if run is not None and (run.selection.shard is not None or run.selection.where):
        from pytest_aorta.plugin.collection import select_items

        try:
            select_items(config, items, run)
        except RequestError as error:
            if not is_worker(config):
                raise pytest.UsageError(str(error)) from None
            items.clear()  # xdist's controller says it: an error here would only confuse it
            config.workeroutput["aorta_refused"] = str(error)  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    run = current_run(collector.config)
    if not isinstance(collector, pytest.Session) or not report.passed or run is None or run.chosen is None:
        return report
    from pytest_aorta.plugin.collection import selected_trials

    report.result.append(selected_trials(collector, report.result, run))
    return report


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Check before the first item what would prevent every trial; end all processes before coverage is combined."""
    option = session.config.option
    # pytest's own loop, which comes after this, will not start when something could not be collected.
    broken = session.testsfailed and not option.continue_on_collection_errors
    if not option.collectonly and not broken and not is_worker(session.config):
        from pytest_aorta.plugin.preflight import check_trials

        if (run := current_run(session.config)) is not None and run.tests:
            run.runner.add_plan(Plan(tuple(run.tests)))
        try:
            check_trials(session)
        except RequestError as error:
            raise pytest.UsageError(str(error)) from None
        if run is not None and run.selection.resume:
            from pytest_aorta.plugin.preflight import tell_what_is_kept

            tell_what_is_kept(session, run)
    result = yield
    run = current_run(session.config)
    if run is not None and session.config.pluginmanager.has_plugin("_cov"):
        # A zygote writes its data when it ends. pytest-cov's wrapper, which is around this one, combines those that
        # are there when the loop is over; later ones would be left as files.
        run.end_prefetched(NO_ITEM)
        run.end_processes()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Drop an item whose round may not begin, because the time is over."""
    run = current_run(item.config)
    if run is None or run.selection.stop.seconds is None or getattr(item, "trial_run", run).has_result(item):
        return None
    rounds, name = run.stopping.rounds, round_of(item)
    if name is None or rounds is None or rounds.begin(name):
        return None
    tear_down_before(item, nextitem)
    return True


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the payload of the item's trials as plain data; show a failed trial as text."""
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    payload = item.stash.get(PAYLOAD, None)
    if isinstance(error, TrialFailed | TrialBroken):
        report.longrepr = shown_failure(error.failure if isinstance(error, TrialBroken) else error, item)
    elif report.failed and call.when != "teardown" and payload is not None:
        add_failed_trials(report, item)
    elif report.skipped and isinstance(error, NotNeeded):
        report.longrepr = longrepr_of_skip(item, error)  # type: ignore[assignment]
        report.aorta_not_needed = True  # type: ignore[attr-defined]
    if payload is not None:
        if payload.exit_status is not None:
            report.user_properties.append(("aorta_exit_status", payload.exit_status))
        # Within one process, the writer has them already; pytest-reportlog writes what a report has.
        is_sent = is_worker(item.config) or item.config.getoption("report_log", None) is not None
        with_records = report.when == "teardown" and is_sent
        report.aorta = payload.to_plain(with_records=with_records)  # type: ignore[attr-defined]
    return report


def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    """Words of our own: TIMEOUT; ERROR if the workload is not what failed; KEPT for complete items of recipes."""
    properties = dict(getattr(report, "user_properties", ()))
    if report.when == "call" and report.passed and "aorta_state" in properties:
        reproduced = properties["aorta_state"] == "reproduced"
        return ("passed", "r", "REPRODUCED") if reproduced else ("passed", "k", "KEPT")
    if report.skipped and getattr(report, "aorta_not_needed", False):
        return "skipped", "", "SKIPPED"  # no letter: the rest of a plan is one line of the summary
    payload = getattr(report, "aorta", None)
    # A test that starts trials itself fails for its own reasons.
    if not payload or not report.failed or "aorta_trial_id" not in properties:
        return None
    if payload["exit_status"] == "timeout" and report.when != "teardown":
        return ("failed" if report.when == "call" else "error", "T", "TIMEOUT")
    if payload["exit_status"] == "infrastructure_failed" and report.when == "call":
        return "error", "E", "ERROR"
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Make pytest-timeout's limit the trial's deadline; its own timer would end pytest instead."""
    from pytest_aorta.plugin.search import SearchItem
    from pytest_aorta.plugin.trial_item import TrialItem

    if isinstance(item, TrialItem) and item.spec.workload.target == TEST_TARGET:
        return True  # there is one inside
    if isinstance(item, SearchItem) or (isinstance(item, TrialItem) and item.spec.execution.isolation != "none"):
        item.stash[TIMEOUT] = settings.timeout
        return True
    return None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Make a shard without items no error, and what a worker refused a usage error."""
    run = current_run(session.config)
    if run is not None and run.refused is not None:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
        sys.stderr.write(f"ERROR: {run.refused}\n")
    elif run is not None and run.all_elsewhere:
        if is_worker(session.config):
            session.config.workeroutput["aorta_all_elsewhere"] = True  # type: ignore[attr-defined]
        elif session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    said, run = getattr(node, "workeroutput", None) or {}, current_run(node.config)
    if run is not None:
        run.all_elsewhere |= "aorta_all_elsewhere" in said
        run.refused = said.get("aorta_refused", run.refused)


def pytest_unconfigure(config: pytest.Config) -> None:
    for run in current_runs(config):
        ignore_sigterm_from_now_on()
        run.end_processes()
        run.stopping.close()
