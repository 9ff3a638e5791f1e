"""The pytest item of a trial: setup, run and cleanup of the workload are setup, call and teardown of the item."""

from __future__ import annotations

import ast
import codecs
import contextlib
import gc
import inspect
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from pluggy import HookRelay

from pytest_aorta.common.import_target import target_file
from pytest_aorta.common.texts import describe_exception, printable
from pytest_aorta.plan import Plan, PlanError, check_variables, trial_value
from pytest_aorta.plugin import is_worker
from pytest_aorta.plugin.compat import GeneratedFunction, fixture_definitions
from pytest_aorta.plugin.failures import TrialBroken, TrialFailed, add_details, failure_of
from pytest_aorta.plugin.run import (
    PAYLOAD,
    NotNeeded,
    PathsOf,
    Prefetcher,
    Repeat,
    ReportPayload,
    SessionRun,
    cell_of,
    reason_of,
)
from pytest_aorta.trials.loading import module_name
from pytest_aorta.trials.outcome import CANNOT_JUDGE
from pytest_aorta.trials.spec import TrialSpec

if TYPE_CHECKING:
    from pytest_aorta.common.conditions import Json
    from pytest_aorta.launch.job import TrialJob
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.workspace.paths import TrialPaths


_PACKAGE = Path(__file__).parents[1]


class UnimportedModule(pytest.Module):
    """A file with workload classes, as the module of its items.

    Fixtures of module scope, ``request.module``, other plugins and IDEs ask for it. Its ``obj`` has only the module's
    name and file: an import would start what only a trial may start.
    """

    #: The file; and the lines, from 0, of the classes that were looked up.
    file: Path
    line_of_class: dict[str, int]

    @classmethod
    def of(cls, parent: pytest.Collector, file: Path, **place: Any) -> Any:
        """Make the node of a file; ``place``: its path, name and node id, if they differ from the file's."""
        node = cls.from_parent(parent, **{"path": file, **place})
        node.file, node.line_of_class = file, {}
        node.obj = ModuleType(module_name(file)[0], "The module of a workload; pytest has not imported it.")
        node.obj.__file__ = str(file)
        return node

    def location_of(self, trial: TrialSpec) -> tuple[Path, int]:
        """File and line, from 0, of a trial's workload class; line 0 if the class is not found."""
        name = trial.workload.target.rpartition(":")[2]
        if name not in self.line_of_class:  # the file is parsed once for all trials of a class
            self.line_of_class[name] = _line_of(self.file, name)
        return self.file, self.line_of_class[name]


def _line_of(file: Path, qualified_name: str) -> int:
    try:
        node: ast.AST = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return 0
    for name in qualified_name.split("."):
        for inner in ast.walk(node):
            if inner is not node and isinstance(inner, ast.ClassDef) and inner.name == name:
                node = inner
                break
        else:
            return 0
    return getattr(node, "lineno", 1) - 1


#: Returns the module to which a trial's item belongs.
ModuleOf = Callable[[TrialSpec], UnimportedModule]


class WorkloadModule(UnimportedModule):
    """The module of registered workloads, wherever it is installed.

    Conftest files of the directory in which pytest was started apply to its trials, and not those beside the module.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.file.name}>"

    @property
    def ihook(self) -> HookRelay:
        assert self.parent is not None
        return self.parent.ihook

    def collect(self) -> Iterable[pytest.Item]:
        """Collect nothing: the trials belong to the collector of the plan, which keeps the plan's order."""
        return ()


def modules_below(collector: pytest.Collector) -> ModuleOf:
    modules: dict[str, WorkloadModule] = {}

    def module_of(trial: TrialSpec) -> WorkloadModule:
        target, name = trial.workload.target, collector.name
        if target not in modules:
            place = place_of(collector.config, name, target)
            file = target_file(target) or place
            known = next((module for module in modules.values() if module.file == file), None)
            # Node ids and what -k finds are those of the plan, wherever a workload is installed.
            modules[target] = known or WorkloadModule.of(
                collector, file, path=place, name=name, nodeid=collector.nodeid
            )
        return modules[target]

    return module_of


def place_of(config: pytest.Config, root: str, target: str) -> Path:
    """The path of a workload's items: its file, if it is below the root directory.

    IDEs build node ids from paths, and run them alone. With the path of a file outside of the root directory, pytest
    would not find the ini file. Then the path is that of the ini file or, if there is none, of a file ``root`` in the
    root directory, which does not exist.
    """
    file = target_file(target)
    for path in (file, config.inipath):
        if path is not None and config.rootpath in path.parents:
            return path
    return config.rootpath / root


def user_code(item: pytest.Function, installed: set[str]) -> Iterator[str]:
    """Fixtures and hooks of the user that run before the trial of an item."""
    functions: list[tuple[str, Any, set[str]]] = []
    for name, definitions in fixture_definitions(item).items():
        # Where it is overridden, even by an installed plugin, its values are known only when the item is set up.
        known = installed if name != "aorta_extra_env" else {"pytest_aorta"}
        functions += [(name, definition.func, known) for definition in definitions]
    for hook in ("pytest_runtest_setup", "pytest_runtest_protocol"):
        functions += [(hook, impl.function, installed) for impl in getattr(item.ihook, hook).get_hookimpls()]
    for name, function, known in functions:
        code = getattr(inspect.unwrap(function), "__code__", None)
        file = "?" if code is None else Path(code.co_filename).name
        if file == "conftest.py" or _module(function).partition(".")[0] not in known:
            yield f"{name} ({file})"


def _module(thing: object) -> str:
    if isinstance(thing, ModuleType):
        return thing.__name__
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


Item = TypeVar("Item", bound="TrialItem")


class TrialItem(GeneratedFunction):
    """One trial. A ``pytest.Function`` of a function with one argument, so that fixtures work as in any test."""

    trial_run: SessionRun
    spec: TrialSpec
    running: TrialJob | None = None
    #: How often the trial has run in this run, set when the item begins.
    repeat = Repeat()

    #: Returns the trial's paths. Most items are only collected, so paths are made late.
    paths_of: PathsOf

    @cached_property
    def paths(self) -> TrialPaths:
        return self.paths_of(self.spec)

    def setup(self) -> None:
        run = self.trial_run
        self.stash[PAYLOAD] = ReportPayload()
        self.repeat = run.next_repeat(self)
        self.paths = self.paths_of(self.spec).repeated(self.repeat.number)
        is_ahead = run.prefetcher is not None and run.prefetcher.is_running(self.nodeid)
        starts_here = not is_ahead and (self.repeat.again or not run.has_result(self))
        if starts_here and (why := run.stopping.reason(self, cell_of(self.spec))) is not None:
            raise NotNeeded(why)
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
            self._keep_unstarted(error, "a fixture failed: ")
            raise
        is_shown = self.config.getoption("capture", "fd") == "no" and not is_worker(self.config)
        if is_shown and self.spec.execution.isolation != "none":
            self.addfinalizer(LogStream(self.paths.folder_in(run.results), begun=is_ahead).close)
        # Registered after the fixtures, so the trial is over before they are torn down.
        self.addfinalizer(self._finish)
        try:
            self.running = self.launch(extra_env)
        except Exception as error:
            if not self.stash[PAYLOAD].trials:
                self._keep_unstarted(error)
            raise
        self._wait("setup")

    def launch(self, extra_env: Mapping[str, str]) -> TrialJob:
        run = self.trial_run
        if run.prefetcher is None and run.selection.resources.total_slots > 1 and not is_worker(self.config):
            run.prefetcher = Prefetcher(run)
            run.prefetcher.launch(prefetchable(self.session, run))
        return run.launch(self, self.spec, self.paths, extra_env, cell_of(self.spec), again=self.repeat.again)

    def _keep_unstarted(self, error: BaseException, why: str = "") -> None:
        from pytest_aorta.launch.record import lost_record
        from pytest_aorta.trials.outcome import exit_failure

        run, text = self.trial_run, describe_exception(error)
        lost = exit_failure("launch", None, {**text, "message": why + text["message"]})
        if not run.selection.resume:  # then an earlier result gives way only to a trial that has started
            run.runner.store.retire(self.paths)
        self.stash[PAYLOAD] = ReportPayload()
        record = self.completed(lost_record(self.spec, lost))
        run.add_record(self, self.paths, record)
        add_details(self, record, run.results, self.paths)

    def completed(self, record: TrialResult) -> TrialResult:
        return record

    def runtest(self) -> None:
        self._wait("run")

    def _wait(self, phase: str) -> None:
        running = self.running
        assert running is not None
        try:
            got_through = running.wait(phase)
            for text in running.take_warnings():
                self.warn(pytest.PytestWarning(text))
            # Known only when all has ended.
            is_known = got_through and not (phase == "run" and self.trial_run.has_judges)
            record = None if is_known else self.completed(running.finish())
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
        if record is not None and not (got_through and record.exit_status == "ok"):
            if phase == "setup" and record.failure is not None and record.failure.phase == "run":
                return  # of a rank that was ahead of rank 0, whose phases these are: the call fails
            self.stash[PAYLOAD].exit_status = record.exit_status
            if record.failure is not None and record.failure.type == CANNOT_JUDGE:
                raise pytest.skip.Exception(record.failure.message, _use_item_location=True)
            failure = self._failure(record)
            raise TrialBroken(failure) if record.exit_status == "infrastructure_failed" else failure

    def _finish(self) -> None:
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
            record = self.completed(running.finish())
        except KeyboardInterrupt as error:
            run.interrupt(reason_of(error))
            running.interrupt(reason_of(error))
            run.add_record(self, self.paths, self.completed(running.finish()), running.resumed)
            raise
        run.add_record(self, self.paths, record, running.resumed)
        add_details(self, record, run.results, self.paths)
        try:
            for text in record.warnings:
                self.warn(pytest.PytestWarning(text))
        except pytest.PytestWarning as error:
            raise TrialFailed(f"a warning, turned into an error: {error}") from None
        # After an interruption there is no report that could show it, and pytest's own end must not fail with it.
        after_result = record.failure is not None and record.failure.phase in ("cleanup", "exit")
        if after_result and record.exit_status == "ok" and run.interrupted is None:
            raise self._failure(record)

    def _failure(self, record: TrialResult) -> TrialFailed:
        return failure_of(record, self.trial_run.results, self.paths, self)

    def condition_values(self) -> list[Callable[[], Json]]:
        return [partial(trial_value, self.spec)]

    def visible_traceback(self, traceback: Any) -> Any:
        """Drop frames of this package, which a trial without isolation has above the workload's."""
        return traceback.filter(lambda entry: _PACKAGE not in Path(entry.path).parents) or traceback

    def reportinfo(self) -> tuple[Path, int, str]:
        assert isinstance(self.parent, UnimportedModule)
        return *self.parent.location_of(self.spec), self.name


@pytest.mark.aorta
def use_fixtures(aorta_extra_env: dict[str, str]) -> None:
    # The test function of every trial: its argument is the fixture that every trial uses. Reporters such as allure's
    # would show a docstring as the description of each trial.
    pass


def items_of(run: SessionRun, plan: Plan, module_of: ModuleOf) -> list[TrialItem]:
    items: list[TrialItem] = []
    sibling: TrialItem | None = None
    was_enabled = gc.isenabled()
    gc.disable()  # it would look at all items again and again
    try:
        for spec in plan.trials:
            sibling = item_of(TrialItem, module_of(spec), spec.item_name, run, spec, plan.paths, sibling)
            items.append(sibling)
    finally:
        if was_enabled:
            gc.enable()
    return items


def item_of(
    kind: type[Item],
    parent: pytest.Collector,
    name: str,
    run: SessionRun,
    spec: TrialSpec,
    paths_of: PathsOf,
    sibling: TrialItem | None,
) -> Item:
    """Make the item of a trial; ``sibling``: another item below the same collector, which saves time."""
    item: Item = kind.of(parent, name, use_fixtures, sibling)
    item.trial_run, item.spec, item.paths_of = run, spec, paths_of
    run.trials[item.nodeid] = spec, paths_of
    item.extra_keyword_matches.update([spec.workload.name, spec.environment.name, *spec.mitigations])
    # At construction, so that even the report of a crashed worker's last item says which trial it was.
    item.user_properties += properties_of(spec)
    return item


def properties_of(spec: TrialSpec) -> list[tuple[str, object]]:
    return [
        ("aorta_trial_id", spec.trial_id),
        ("aorta_workload", spec.workload.name),
        ("aorta_environment", spec.environment.name),
        ("aorta_mitigations", "+".join(spec.mitigations)),
    ]


def prefetchable(session: pytest.Session, run: SessionRun) -> Iterator[tuple[pytest.Item, TrialSpec, TrialPaths]]:
    """Yield the items of a run whose trials may be prefetched."""
    plugins = [_module(plugin) for plugin, _ in session.config.pluginmanager.list_plugin_distinfo()]
    installed = {"_pytest", "pytest", "pluggy", *(module.partition(".")[0] for module in plugins)}
    copies = Counter(item.nodeid for item in session.items)
    for item in session.items:
        if not isinstance(item, TrialItem) or item.trial_run is not run:
            continue
        replayed = item.spec.origin is not None and item.spec.origin.seed is not None
        if item.spec.execution.isolation == "none" or replayed:
            continue
        if copies[item.nodeid] > 1:  # which of them pytest comes to first is not known
            continue
        code = next(user_code(item, installed), None)
        if code is not None:
            run.held_by.setdefault(code, item.nodeid)
        elif not any(item.get_closest_marker(name) for name in ("skip", "skipif", "xfail")):
            yield item, item.spec, item.paths


#: Seconds between two reads of the logs.
_INTERVAL = 0.1


class LogStream:
    """With ``-s``: copies a trial's logs to standard output as they grow, until it is closed.

    ``begun``: whether existing logs are of this trial; otherwise they are of an earlier run, and not shown.
    """

    def __init__(self, folder: Path, *, begun: bool) -> None:
        self._logs = [folder / name for name in ("stdout.log", "stderr.log")]
        self._earlier = set() if begun else {log.stat().st_ino for log in self._logs if log.exists()}
        self._offsets = dict.fromkeys(self._logs, 0)
        self._decoders = {log: codecs.getincrementaldecoder("utf-8")("replace") for log in self._logs}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="aorta-log-stream", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.wait(_INTERVAL):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        for log in self._logs:
            with contextlib.suppress(OSError), log.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino in self._earlier:
                    continue
                file.seek(min(self._offsets[log], status.st_size))  # smaller: it was cut to its limit
                text = self._decoders[log].decode(file.read())
                self._offsets[log] = file.tell()
                sys.stdout.write(printable(text))
                sys.stdout.flush()
