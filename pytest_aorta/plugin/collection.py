"""From plans to pytest items: trials of registered workloads, and of Workload classes in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plan import Plan, PlanError, check_variables, ordered, trials_of
from pytest_aorta.plugin.discovery import workload_classes
from pytest_aorta.plugin.run import REPORT, Told, TrialFailed, run_of
from pytest_aorta.registry import RegistryError, WorkloadEntry

if TYPE_CHECKING:
    from pytest_aorta.launch.submitted import RunningTrial
    from pytest_aorta.plan import Selection
    from pytest_aorta.registry import Registry
    from pytest_aorta.trials.spec import TrialSpec

#: Node id of the collector of ``--aorta-workload``.
ROOT = "aorta"


class TrialItem(pytest.Function):
    """One trial. A ``pytest.Function`` of a function with one argument, so that fixtures work as in any test."""

    spec: TrialSpec
    plan: Plan

    @classmethod
    def of(cls, parent: pytest.Collector, plan: Plan, spec: TrialSpec, shared: TrialItem | None) -> TrialItem:
        """The item of ``spec``; the closure of its fixtures is taken from a sibling where there is one."""
        extra: dict[str, Any] = {} if shared is None else {"fixtureinfo": shared._fixtureinfo}
        item: TrialItem = cls.from_parent(parent, name=spec.item_name, callobj=_requests, **extra)
        item.spec, item.plan = spec, plan
        item.add_marker(pytest.mark.aorta)
        item.extra_keyword_matches.update([spec.workload.name, spec.environment.name, *spec.mitigations])
        # At construction, so that even the report of a crashed worker's last item says which trial it was.
        item.user_properties += [
            ("aorta_trial_id", spec.trial_id),
            ("aorta_workload", spec.workload.name),
            ("aorta_environment", spec.environment.name),
            ("aorta_mitigations", "+".join(spec.mitigations)),
        ]
        item.running = None
        if hasattr(item, "_id"):
            # pytest 9.2 compares structured ids, and does not take a name with brackets apart by itself: without this,
            # --lf and --ff would not know the item again.
            item._id = type(item._id).parse(item.nodeid)
        return item

    running: RunningTrial | None

    def setup(self) -> None:
        """Set the fixtures up, start the trial, and wait until the workload is set up."""
        run = run_of(self.config)
        place = self.plan.place(self.spec)
        self.stash[REPORT] = Told()
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
            run.not_launched(self, self.spec, place, error, "a fixture failed: ")
            raise
        if self.spec.execution.isolation == "none":
            variables = pytest.MonkeyPatch()
            for name, value in {**self.spec.overlay, **extra_env}.items():
                variables.setenv(name, value)
            self.addfinalizer(variables.undo)
        # Registered after the fixtures, so the trial is over before they are torn down.
        self.addfinalizer(self._finish)
        try:
            run.ahead.launch_all(self.session)
            self.running = run.launch(self, self.spec, place, extra_env)
        except Exception as error:
            if not self.stash[REPORT].records:
                run.not_launched(self, self.spec, place, error)
            raise
        run.wait(self, self.running, "setup", place)

    def runtest(self) -> None:
        """Wait for the end of ``run()``."""
        assert self.running is not None
        run_of(self.config).wait(self, self.running, "run", self.plan.place(self.spec))

    def _traceback_filter(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
        """Without isolation, a traceback begins with the workload and not with those who called it."""
        traceback = super()._traceback_filter(excinfo)
        return traceback.filter(lambda entry: Path(__file__).parents[1] not in Path(entry.path).parents) or traceback

    def _finish(self) -> None:
        if self.running is not None:
            running, self.running = self.running, None
            run_of(self.config).finish(self, running, self.plan.place(self.spec))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Path, its first line (pytest needs one for warnings), and the name."""
        return self.path, 0, self.name


def _requests(aorta_extra_env: dict[str, str]) -> None:
    """What every trial asks of the fixtures."""


def items_of(parent: pytest.Collector, plan: Plan) -> Iterator[TrialItem]:
    """The items of a plan, in its order."""
    shared: TrialItem | None = None
    for spec in plan.trials:
        shared = TrialItem.of(parent, plan, spec, shared)
        yield shared


class SelectedTrials(pytest.Collector):
    """Collector of the trials that the options select."""

    plan: Plan
    wanted: Callable[[str], bool]

    def collect(self) -> Iterable[pytest.Item]:
        """All trials, or those that were named on the command line."""
        items = [item for item in items_of(self, self.plan) if self.wanted(item.name)]
        if not items:
            names = ", ".join(spec.item_name for spec in self.plan.trials[:5])
            raise self.CollectError(f"no trial has the given name; there are {names}, ...")
        return items


def split_arguments(arguments: list[str], plan: Plan) -> tuple[list[str], set[str]]:
    """Command line arguments that are paths, and names of trials among them.

    A trial may be named by its node id ``aorta::NAME``, as ``::NAME``, or by ``NAME`` alone.
    """
    beginnings = {spec.item_name.partition("[")[0] for spec in plan.trials}
    paths, chosen = [], set()
    for argument in arguments:
        prefix, separator, name = argument.rpartition("::")
        trial_like = name.partition("[")[0] in beginnings and name.endswith("]")
        if prefix in (ROOT, "") and (separator or trial_like) and not Path(argument).exists():
            chosen.add(name)
        else:
            paths.append(argument)
    return paths, chosen


def unknown_trials(chosen: Iterable[str], plan: Plan) -> list[str]:
    """Names that are no trial of the plan."""
    names = {spec.item_name for spec in plan.trials}
    return sorted(name for name in chosen if name not in names)


def selected_trials(session: pytest.Session, collected: list[Any], plan: Plan, chosen: set[str]) -> SelectedTrials:
    """The collector of the plan, placed in the directory that pytest was started in, so that its conftest applies."""
    parent = _directory(session, collected)
    collector: SelectedTrials = SelectedTrials.from_parent(parent, name=ROOT, nodeid=ROOT)
    collector.plan = plan
    collector.wanted = chosen.__contains__ if chosen else lambda name: True
    return collector


def _directory(session: pytest.Session, collected: list[Any]) -> pytest.Collector:
    """The collector of the current directory: one that has been collected already, or a new chain down to it.

    Fixtures of a conftest belong to the collector object of its directory (pytest 9.2), and become visible when that
    is collected; so an existing one must be found, and a new one be collected.
    """
    here, top = session.config.invocation_params.dir, session.config.rootpath
    below = [path for path in [here, *here.parents] if path == top or top in path.parents] or [top]
    known = {node.path: node for found in collected for node in found.listchain() if isinstance(node, pytest.Directory)}
    final = {node for node in collected if isinstance(node, pytest.Directory)}
    parent: Any = session
    for path in reversed(below):
        node = known.get(path)
        if node is None:
            node = parent.ihook.pytest_collect_directory(path=path, parent=parent)
            if node is None:
                return parent  # type: ignore[no-any-return]  # an ignored directory
            node.ihook.pytest_make_collect_report(collector=node)
        parent = node
        if node in final:
            continue  # will be collected before our collector is
    return parent  # type: ignore[no-any-return]


class WorkloadFile(pytest.File):
    """A Python file with Workload classes, given as a path. Its classes are found without importing it."""

    def collect(self) -> Iterable[pytest.Item]:
        """The trials of all its classes."""
        run = run_of(self.config)
        try:
            plan = plan_of_file(self.path, run.selection, run.registry)
            run.add_plan(plan)
        except (RegistryError, PlanError) as error:
            raise self.CollectError(str(error)) from None
        return list(items_of(self, plan))


def plan_of_file(path: Path, selection: Selection, registry: Registry) -> Plan:
    """The trials of all Workload classes of a file."""
    entries = [
        WorkloadEntry(name=name, target=f"{path}:{cls}", source_package=f"file:{path.name}")
        for name, cls in workload_classes(path)
    ]
    return Plan(ordered(trials_of(entries, selection, registry), selection.order))
