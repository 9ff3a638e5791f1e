"""The state of a pytest run that has trials: its selection, plan and runner, and what every trial goes through."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.exception_text import describe_exception
from pytest_aorta.launch.nodes.addressing import part
from pytest_aorta.plan import Plan, PlanError, Selection, make_plan
from pytest_aorta.plugin.options import OptionError, read_selection
from pytest_aorta.plugin.prefetch import Ahead
from pytest_aorta.plugin.sigterm import end_in_order_when_terminated, reason_of
from pytest_aorta.registry import Registry
from pytest_aorta.workspace import history

if TYPE_CHECKING:
    from pytest_aorta.launch.engine import TrialEngine
    from pytest_aorta.launch.replayed import ReplayedTrial
    from pytest_aorta.launch.submitted import RunningTrial
    from pytest_aorta.launch.workload_info import PreparedCell
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPlace

RUN = pytest.StashKey["Run"]()

#: Deadline that pytest-timeout asks for, in seconds.
DEADLINE = pytest.StashKey[float]()


@dataclass
class Told:
    """What the reports of an item carry.

    ``exit_status`` of its trial as far as known; ``records`` of trials that are over, each with ``path``, relative to
    the results directory, ``result``, and ``resumed``: whether that is the file's content already.
    """

    exit_status: str | None = None
    records: list[dict[str, Any]] = field(default_factory=list)

    def to_plain(self, *, with_records: bool) -> dict[str, Any]:
        """For an attribute of a report, which travels between processes.

        The records as JSON: execnet cannot carry every text, such as a file's name that is no UTF-8.
        """
        return {"exit_status": self.exit_status, "records": json.dumps(self.records if with_records else [])}


REPORT = pytest.StashKey[Told]()


class TrialFailed(pytest.fail.Exception):  # type: ignore[name-defined,misc]  # an attribute of a function
    """Shown as text, without a traceback through pytest."""

    def __init__(self, text: str) -> None:
        super().__init__(text, pytrace=False)


class Run:
    """One per pytest process."""

    def __init__(self, config: pytest.Config, selection: Selection, stamp: str) -> None:
        self.config = config
        self.selection = selection
        self.stamp = stamp
        self.results = config.invocation_params.dir / selection.results_dir
        self.plans: list[Plan] = []
        #: Records that no report has carried away yet.
        self.unreported: list[dict[str, Any]] = []
        #: What has interrupted pytest itself, between two phases of an item as well as in one.
        self.interrupted: str | None = None
        #: Where trials have been started; a plugin may run an item again, and wants to see something new.
        self._started: set[TrialPlace] = set()
        self._lock = threading.Lock()
        self._engine: TrialEngine | None = None

    @cached_property
    def registry(self) -> Registry:
        """Built-ins, plugins and the files of ``--aorta-registry-file``."""
        return Registry.load(self.selection.registry_files)

    @cached_property
    def plan(self) -> Plan:
        """The trials of ``--aorta-workload``."""
        plan = make_plan(self.selection, self.registry)
        self.add_plan(plan)
        return plan

    def add_plan(self, plan: Plan) -> None:
        """Know of more trials.

        Raises:
            PlanError: one of its workloads has the name of another; their results would lie in one place.
        """
        known = {spec.workload.name: spec.workload for other in self.plans for spec in other.trials}
        for spec in plan.trials:
            other = known.get(spec.workload.name)
            if other is not None:
                raise PlanError(
                    f"two workloads are named {other.name!r}: {other.target} and {spec.workload.target}; "
                    "give one of the classes another name with a class attribute `name`"
                )
        self.plans.append(plan)

    @property
    def engine(self) -> TrialEngine:
        """Runs trials; made when the first one starts. A test may start trials on threads of its own."""
        from pytest_aorta.launch.make_engine import make_engine
        from pytest_aorta.runtime.zygotes.process_tree import die_with_parent

        end_in_order_when_terminated(self.config)
        with self._lock:
            if self._engine is None:
                if hasattr(self.config, "workerinput"):
                    # Once its controller has gone, an xdist worker waits five seconds for the test that it runs.
                    die_with_parent(os.getppid())
                self._engine = make_engine(self.selection, self.plans)
            return self._engine

    @cached_property
    def ahead(self) -> Ahead:
        """Trials that run before pytest has come to their items."""
        return Ahead(self)

    def close(self) -> None:
        """End all processes."""
        if self._engine is not None:
            self._engine.close()

    def launch(
        self, item: pytest.Item, spec: TrialSpec, place: TrialPlace, extra_env: Mapping[str, str]
    ) -> RunningTrial:
        """Start the trial of an item, or with ``--aorta-resume`` find its result."""
        item.stash.setdefault(REPORT, Told())  # a test may start several
        running = self.ahead.take(item) if not extra_env else None
        if running is not None:
            return running
        spec = replace(spec, overlay={**spec.overlay, **extra_env})
        return self.find(spec, place) or self.start(spec, place, deadline_of(item, spec))

    def find(self, spec: TrialSpec, place: TrialPlace) -> ReplayedTrial | None:
        """With ``--aorta-resume``, the trial as an earlier run has seen it, where that was of this very request."""
        if not self.selection.resume or place in self._started:
            return None
        from pytest_aorta.launch.resuming import kept_trial

        return kept_trial(spec, place.file_in(self.results), self._checked)

    def _checked(self, spec: TrialSpec) -> PreparedCell | None:
        if spec.execution.isolation == "none":
            from pytest_aorta.launch.inprocess import check_here

            return check_here(spec)
        return self.engine.checked(spec)

    def start(
        self,
        spec: TrialSpec,
        place: TrialPlace,
        deadline: float | None,
        *,
        urgent: bool = True,
    ) -> RunningTrial:
        """Have a trial run, an ``urgent`` one before those that wait for a slot; an earlier result moves away."""
        self._started.add(place)
        if spec.execution.isolation == "none":
            from pytest_aorta.launch.inprocess import InProcessTrial

            self._retire(place)
            return InProcessTrial(spec)
        kind, number = part(self.selection.execution.elastic, self.selection.resources.hosts)
        folder = place.folder_in(self.results, number or 0, kind)
        return self.engine.launch(spec, folder, deadline, urgent=urgent, on_start=lambda: self._retire(place))

    def _retire(self, place: TrialPlace) -> None:
        """What an earlier run has left in a trial's place moves to the history."""
        kind, number = part(self.selection.execution.elastic, self.selection.resources.hosts)
        history.retire(self.results, place, self.stamp, number, kind)

    def not_launched(
        self, item: pytest.Item, spec: TrialSpec, place: TrialPlace, error: BaseException, why: str = ""
    ) -> None:
        """Record a trial whose fixtures failed, or that cannot be launched: pytest has started it, but no process."""
        from pytest_aorta.launch.record import build_record
        from pytest_aorta.probe.snapshot import utc_now
        from pytest_aorta.trials.outcome import Observed, exit_failure

        text = describe_exception(error)
        lost = exit_failure("launch", None, {**text, "message": why + text["message"]})
        if not self.selection.resume:  # then it gives way only to a trial that has started
            history.retire(self.results, place, self.stamp)
        record = build_record(spec, Observed(lost=lost), started_at=utc_now())
        item.stash[REPORT] = Told()
        self.keep(item, place, record)

    def wait(self, item: pytest.Item, running: RunningTrial, phase: str, place: TrialPlace) -> None:
        """Wait for the end of a phase.

        Raises:
            TrialFailed: the trial did not get through it.
        """
        from pytest_aorta.plugin.failure_text import failure_text

        try:
            got_through = running.wait(phase)
            warn(item, running)
        except pytest.PytestWarning:  # the user has warnings turned into errors
            running.interrupt("a warning was raised as an error")
            raise
        except KeyboardInterrupt as error:
            self.interrupt(reason_of(error))
            running.interrupt(reason_of(error))
            raise
        except BaseException as error:  # of the workload itself, which runs in this process
            item.stash[REPORT].exit_status = getattr(error, "aorta_exit_status", None)
            raise
        if not got_through:
            record = running.finish()  # how it ended is known only when it has ended
            item.stash[REPORT].exit_status = record.exit_status
            raise TrialFailed(failure_text(record, self.results, place, item))

    def finish(self, item: pytest.Item, running: RunningTrial, place: TrialPlace) -> None:
        """Wait until the trial is over and keep its record for the report of the teardown.

        Raises:
            TrialFailed: the cleanup failed.
        """
        from pytest_aorta.plugin.failure_text import failure_text

        if not running.got_through("run") and not running.failed():
            running.interrupt(self.interrupted or "the item ended before its trial")
        try:
            record = running.finish()
        except KeyboardInterrupt as error:
            self.interrupt(reason_of(error))
            running.interrupt(reason_of(error))
            self.keep(item, place, running.finish(), running.resumed)  # with the result, where there is one already
            raise
        self.keep(item, place, record, running.resumed)
        if record.failure is not None and record.failure.phase == "cleanup":
            raise TrialFailed(failure_text(record, self.results, place, item))

    def interrupt(self, why: str) -> None:
        """Pytest itself was interrupted: nothing is to start any more."""
        self.interrupted = why
        self.ahead.interrupt(why)

    def keep(self, item: pytest.Item, place: TrialPlace, record: TrialResult, resumed: bool = False) -> None:
        """Have the item's last report bring this record to the process that writes."""
        told = item.stash.setdefault(REPORT, Told())
        told.exit_status = record.exit_status
        told.records.append({"path": str(place.file), "result": record.to_dict(), "resumed": resumed})
        item.user_properties.append(("aorta_exit_status", record.exit_status))
        if not hasattr(self.config, "workerinput"):  # a worker's last report may be lost, and then so is its process
            self.unreported.append(told.records[-1])


def warn(item: pytest.Item, running: RunningTrial) -> None:
    """Show what the user should know about a trial; raises what the user has turned into an error."""
    for text in running.take_warnings():
        item.warn(pytest.PytestWarning(text))


def run_of(config: pytest.Config) -> Run:
    """The run of a config, made when it is first asked for.

    Raises:
        pytest.UsageError: an option has a value that it cannot take.
    """
    if RUN not in config.stash:
        worker = getattr(config, "workerinput", None)
        try:
            selection = read_selection(config)
        except OptionError as error:
            raise pytest.UsageError(str(error)) from None
        config.stash[RUN] = Run(config, selection, worker["aorta"]["stamp"] if worker else history.stamp())
    return config.stash[RUN]


def deadline_of(item: pytest.Item, spec: TrialSpec) -> float | None:
    """A trial's deadline in seconds; ``None`` leaves it to the workload.

    The first of: the marker ``aorta(timeout=)``, pytest-timeout's marker, ``--aorta-timeout``, and pytest-timeout's
    limit for all tests, which was hardly made with trials in mind.
    """
    for marker in item.iter_markers("aorta"):
        if marker.kwargs.get("timeout") is not None:
            return float(marker.kwargs["timeout"])
    general = item.stash.get(DEADLINE, None) or _pytest_timeout(item)
    if spec.limits.timeout is None or (general is not None and item.get_closest_marker("timeout") is not None):
        return general
    return spec.limits.timeout


def _pytest_timeout(item: pytest.Item) -> float | None:
    """pytest-timeout's limit for an item that pytest has not come to yet."""
    if not item.config.pluginmanager.has_plugin("timeout"):
        return None
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        given: float | None = marker.kwargs.get("timeout", marker.args[0] if marker.args else None)
        return given or None  # 0 switches it off
    limit: float | None = getattr(item.config, "_env_timeout", None)  # where pytest-timeout keeps it
    return limit or None
