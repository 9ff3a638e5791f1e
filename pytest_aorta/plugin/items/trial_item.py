"""The pytest item of a trial: setup, run and cleanup of the workload are setup, call and teardown of the item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_aorta.common.exception_text import describe_exception
from pytest_aorta.common.garbage import collector_paused
from pytest_aorta.plan import Plan, PlanError, check_variables
from pytest_aorta.plugin.compat import GeneratedFunction
from pytest_aorta.plugin.deadlines import deadline_of
from pytest_aorta.plugin.failure_text import TrialBroken, TrialFailed, failure_of
from pytest_aorta.plugin.items.unimported_module import ModuleOf, location_of
from pytest_aorta.plugin.items.user_code import installed_modules, user_code
from pytest_aorta.plugin.prefetch import QueuedTrial
from pytest_aorta.plugin.repeats import Occurrence
from pytest_aorta.plugin.report_details import add_details
from pytest_aorta.plugin.report_payload import PAYLOAD, ReportPayload
from pytest_aorta.plugin.run import Run, run_of, warn, without_exit_status
from pytest_aorta.plugin.sigterm import reason_of
from pytest_aorta.plugin.stopping.decided_cells import cell_of
from pytest_aorta.plugin.stopping.early_end import round_of
from pytest_aorta.plugin.xdist_roles import is_worker

if TYPE_CHECKING:
    from pytest_aorta.launch.slot_trial import RunningTrial
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths

Item = TypeVar("Item", bound="TrialItem")


class TrialItem(GeneratedFunction):
    """One trial. A ``pytest.Function`` of a function with one argument, so that fixtures work as in any test."""

    spec: TrialSpec
    running: RunningTrial | None = None
    #: Which one in this run it is, once it has begun.
    occurrence = Occurrence()

    #: Gives the trial's paths: most items are only collected, and have none.
    paths_of: Callable[[TrialSpec], TrialPaths]

    @cached_property
    def paths(self) -> TrialPaths:
        """Of the trial's file and artifacts."""
        return self.paths_of(self.spec)

    @property
    def trial_run(self) -> Run:
        """The run that the trial belongs to."""
        return run_of(self.config)

    def setup(self) -> None:
        """Set the fixtures up, start the trial, and wait until the workload is set up."""
        run = self.trial_run
        self.stash[PAYLOAD] = ReportPayload()
        self.user_properties = without_exit_status(self)
        self.occurrence = run.occurrences.next(self)
        self.paths = self.paths_of(self.spec).repeated(self.occurrence.number)
        if (self.occurrence.again or not run.has_result(self)) and not run.prefetcher.is_running(self.nodeid):
            run.stopping.check(cell_of(self.spec), round_of(self) or "")
        try:
            super().setup()
            extra_env: Any = self.funcargs["aorta_extra_env"]
            if self.config.getoption("setuponly", False):  # --setup-plan runs no fixture
                return
            try:
                check_variables("the fixture aorta_extra_env", extra_env)
            except PlanError as error:
                raise TrialFailed(str(error)) from None
        except (pytest.skip.Exception, pytest.exit.Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._keep_unstarted(run, error, "a fixture failed: ")
            raise
        self._show_output(run)
        # Registered after the fixtures, so the trial is over before they are torn down.
        self.addfinalizer(self._finish)
        try:
            self.running = self.launch(run, extra_env)
        except Exception as error:
            if not self.stash[PAYLOAD].trials:
                self._keep_unstarted(run, error)
            raise
        self._wait("setup")

    def _show_output(self, run: Run) -> None:
        """With ``-s``, show what the trial prints until it is over; without isolation, it prints there itself."""
        shown = self.config.getoption("capture", "fd") == "no" and not is_worker(self.config)
        if shown and self.spec.execution.isolation != "none":
            from pytest_aorta.plugin.log_stream import LogStream

            folder = self.paths.folder_in(run.results)
            self.addfinalizer(LogStream(folder, begun=run.prefetcher.is_running(self.nodeid)).close)

    def launch(self, run: Run, extra_env: Mapping[str, str]) -> RunningTrial:
        """Start the trial, and ahead of their items those that may be."""
        prefetch(self.session, run)
        return run.launch(self, self.spec, self.paths, extra_env, cell_of(self.spec), again=self.occurrence.again)

    def _keep_unstarted(self, run: Run, error: BaseException, why: str = "") -> None:
        """Record a trial that has no process: its fixtures failed, or it cannot be started."""
        from pytest_aorta.launch.record import lost_record
        from pytest_aorta.trials.outcome import exit_failure

        text = describe_exception(error)
        lost = exit_failure("launch", None, {**text, "message": why + text["message"]})
        if not run.selection.resume:  # then an earlier result gives way only to a trial that has started
            run.runner.store.retire(self.paths)
        self.stash[PAYLOAD] = ReportPayload()
        record = self.completed(lost_record(self.spec, lost))
        run.keep(self, self.paths, record)
        add_details(self, record, run.results, self.paths)

    def completed(self, record: TrialResult) -> TrialResult:
        """The record of a trial that could not be started, with all that this item knows of it."""
        return record

    def runtest(self) -> None:
        """Wait for the end of ``run()``."""
        self._wait("run")

    def _wait(self, phase: str) -> None:
        """Wait for the end of a phase.

        Raises:
            TrialFailed: the trial did not get through it.
        """
        running = self.running
        assert running is not None
        try:
            got_through = running.wait(phase)
            warn(self, running.take_warnings())
            record = None if got_through else running.finish()  # how it ended is known only when it has ended
        except pytest.PytestWarning:  # the user has warnings turned into errors
            running.interrupt("a warning was raised as an error")
            raise
        except KeyboardInterrupt as error:
            self.trial_run.interrupt(reason_of(error))
            running.interrupt(reason_of(error))
            raise
        except BaseException as error:  # of the workload itself, which runs in this process
            self.stash[PAYLOAD].exit_status = getattr(error, "aorta_exit_status", None)
            raise
        if record is not None:
            self.stash[PAYLOAD].exit_status = record.exit_status
            failure = self._failure(record)
            raise TrialBroken(failure) if record.exit_status == "infrastructure_failed" else failure

    def _finish(self) -> None:
        """Wait until the trial is over, and have its record reported with the teardown.

        Raises:
            TrialFailed: the cleanup failed, or a warning is an error.
        """
        running, self.running = self.running, None
        if running is None:
            return
        run = self.trial_run
        if not running.got_through("run"):
            if run.interrupted is not None:
                running.interrupt(run.interrupted)
            elif not running.failed():
                running.interrupt("the item ended before its trial")
        try:
            record = running.finish()
        except KeyboardInterrupt as error:
            run.interrupt(reason_of(error))
            running.interrupt(reason_of(error))
            run.keep(self, self.paths, running.finish(), running.resumed)  # with the result, if there is one already
            raise
        run.keep(self, self.paths, record, running.resumed)
        add_details(self, record, run.results, self.paths)
        try:
            warn(self, record.warnings)
        except pytest.PytestWarning as error:
            raise TrialFailed(f"a warning, turned into an error: {error}") from None
        # After an interruption there is no report that could show it, and pytest's own end must not fail with it.
        if record.failure is not None and record.failure.phase == "cleanup" and run.interrupted is None:
            raise self._failure(record)

    def _failure(self, record: TrialResult) -> TrialFailed:
        return failure_of(record, self.trial_run.results, self.paths, self)

    def visible_traceback(self, traceback: Any) -> Any:
        """Without isolation, a traceback begins with the workload and not with the callers of it."""
        return traceback.filter(lambda entry: Path(__file__).parents[2] not in Path(entry.path).parents) or traceback

    def reportinfo(self) -> tuple[Path, int, str]:
        """Path and line of the workload's class, and the name."""
        return *location_of(self, self.spec), self.name


@pytest.mark.aorta
def _use_fixtures(aorta_extra_env: dict[str, str]) -> None:
    # The test function of every trial: its argument is the fixture that every trial uses. Reporters such as allure's
    # would show a docstring as the description of each trial.
    pass


def items_of(plan: Plan, module_of: ModuleOf) -> list[TrialItem]:
    """The items of a plan, in its order, each below its module."""
    items: list[TrialItem] = []
    sibling: TrialItem | None = None
    with collector_paused():
        for spec in plan.trials:
            sibling = item_of(TrialItem, module_of(spec), spec.item_name, spec, plan.paths, sibling)
            items.append(sibling)
    return items


def item_of(
    kind: type[Item],
    parent: pytest.Collector,
    name: str,
    spec: TrialSpec,
    paths_of: Callable[[TrialSpec], TrialPaths],
    sibling: TrialItem | None,
) -> Item:
    """One item; ``sibling`` is another one below the same collector."""
    item: Item = kind.of(parent, name, _use_fixtures, sibling)
    item.spec, item.paths_of = spec, paths_of
    item.extra_keyword_matches.update([spec.workload.name, spec.environment.name, *spec.mitigations])
    # At construction, so that even the report of a crashed worker's last item says which trial it was.
    item.user_properties += properties_of(spec)
    return item


def properties_of(spec: TrialSpec) -> list[tuple[str, object]]:
    """What reports say of a trial that has not begun."""
    return [
        ("aorta_trial_id", spec.trial_id),
        ("aorta_workload", spec.workload.name),
        ("aorta_environment", spec.environment.name),
        ("aorta_mitigations", "+".join(spec.mitigations)),
    ]


def prefetch(session: pytest.Session, run: Run) -> None:
    """Start, in the order of their items, all trials that do not depend on what runs before their items."""
    prefetcher = run.prefetcher
    if prefetcher.launched or run.selection.resources.total_slots < 2 or is_worker(session.config):
        return
    installed = installed_modules(session.config)
    queued = []
    for item in session.items:
        if not isinstance(item, TrialItem) or item.trial_run is not run:
            continue
        if item.spec.execution.isolation == "none" or item.spec.origin is not None:
            continue
        if run.occurrences.copies(item) > 1:  # which of them pytest comes to first is not known
            continue
        code = next(user_code(item, installed), None)
        if code is not None:
            run.held_by.setdefault(code, item.nodeid)
        elif not any(item.get_closest_marker(name) for name in ("skip", "skipif", "xfail")):
            queued.append(QueuedTrial(item.nodeid, item.spec, item.paths, deadline_of(item, item.spec)))
    prefetcher.launch(queued)
