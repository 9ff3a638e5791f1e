"""Trials of ordinary tests.

A plan says in which cells a test runs, and how often: that of ``@pytest.mark.aorta``, else that of the options. A test
that takes ``aorta_run`` runs in pytest itself, and starts trials of workloads in these cells; any other test is the
trial, in a pytest of its own (``one_test``).
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import pytest_aorta.settings as valid
from pytest_aorta.common.texts import printable
from pytest_aorta.plan import Plan, check_axes, check_variables, planned, trials_of
from pytest_aorta.plugin import MARKER, is_of_recipe
from pytest_aorta.plugin.compat import GeneratedFunction, option_actions
from pytest_aorta.plugin.one_test import NOT_INSIDE
from pytest_aorta.plugin.options import read_option
from pytest_aorta.plugin.run import (
    PAYLOAD,
    TEST_TARGET,
    WATCHER,
    ReportPayload,
    current_run,
    deadline_of,
    reason_of,
    run_of,
)
from pytest_aorta.plugin.trial_item import TrialItem, item_of
from pytest_aorta.registry import WorkloadEntry
from pytest_aorta.settings import RequestError
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.trials.execution import Execution
from pytest_aorta.trials.records import canonical_json
from pytest_aorta.trials.workload import to_plain
from pytest_aorta.workspace.paths import paths_in_test

if TYPE_CHECKING:
    from pytest_aorta.launch.job import TrialJob
    from pytest_aorta.plan import Selection
    from pytest_aorta.plugin.run import SessionRun
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths


# The cells of a test


def _several(read: valid.Reader, expected: str) -> valid.Reader:
    def read_all(value: Any) -> tuple[Any, ...]:
        try:
            values = tuple(map(read, (value,) if isinstance(value, str) else value))
        except (TypeError, ValueError):
            values = ()
        if not values:
            raise ValueError(expected)
        return values

    return read_all


#: What each keyword of the marker takes.
_KEYWORDS: Mapping[str, valid.Reader] = {
    "trials": valid.positive_int,
    "mitigations": _several(valid.names, "a list of mitigation sets, each a text with commas or a list of names"),
    "environments": _several(valid.name, "a name, or a list of names"),
    "timeout": valid.optional(valid.seconds),
}


def marked_selection(node: pytest.Item, run: SessionRun) -> tuple[Selection, bool]:
    """The selection of a run as the markers of a test change it, and whether a marker asks for trials."""
    selection, asks = run.selection, False
    for marker in reversed(list(node.iter_markers("aorta"))):  # the closest one last
        unknown = sorted(set(marker.kwargs) - set(_KEYWORDS))
        if unknown or marker.args:
            what = ", ".join(unknown) or "positional arguments"
            raise RequestError(f"{MARKER} takes the keywords {', '.join(_KEYWORDS)}, not {what}")
        given = {}
        for keyword, value in marker.kwargs.items():
            try:
                given[keyword] = _KEYWORDS[keyword](value)
            except ValueError as error:
                raise RequestError(f"{MARKER} has {keyword}={valid.quoted(value)}; expected {error}") from None
        given.pop("timeout", None)
        asks |= bool(given)
        selection = replace(selection, **given)
        try:
            for name in given.get("environments", ()):
                run.registry.environment(name)
            for name in itertools.chain.from_iterable(given.get("mitigations", ())):
                run.registry.mitigation(name)
            check_axes(given.get("environments", ()), given.get("mitigations", ()), "trials=")
        except RequestError as error:
            raise RequestError(f"{MARKER}: {error}") from None
    return selection, asks


def _plan_of(test: pytest.Item, run: SessionRun, selection: Selection) -> Plan:
    names = test.nodeid.partition("::")[2]
    given = {
        "test": f"{test.path}::{names}" if names else str(test.path),
        "nodeid": test.nodeid,
        "rootdir": str(test.config.rootpath),
        "inifile": None if test.config.inipath is None else str(test.config.inipath),
        "arguments": _arguments(test.config),
    }
    return planned([WorkloadEntry(test.nodeid, TEST_TARGET, "pytest", given)], selection, run.registry)


def _name_of(spec: TrialSpec) -> str:
    """The trial, within the brackets of a test's name."""
    return f"{spec.cell}-{spec.trial_index}"


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Check the markers of a test; if it takes ``aorta_run`` and has a plan, make one item per trial of the plan."""
    __tracebackhide__ = True
    test, run = metafunc.definition, run_of(metafunc.config)
    problem = ""
    try:
        selection, asks = marked_selection(test, run)
        if "aorta_run" not in metafunc.fixturenames or not (asks or run.takes_tests):
            return
        trials = _plan_of(test, run, selection).trials
    except RequestError as error:
        problem = f"{test.nodeid}: {error}"
    if problem:
        pytest.fail(problem, pytrace=False)
    metafunc.parametrize("aorta_run", trials, indirect=True, ids=list(map(_name_of, trials)))


# Trials that a test starts

#: Longest text of the options in the table.
_COLUMN = 60


def check_keywords(fixture: str, call: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Reject unknown keywords, and list the valid ones: those of ``call``."""
    __tracebackhide__ = True
    names = ", ".join(repr(name) for name in unknown)
    if names:
        parameters = inspect.signature(call).parameters.values()
        known = ", ".join(each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY)
        raise RequestError(f"{fixture} has no keyword {names}; it takes {known}")


class RunTrial:
    """The fixture ``aorta_run``.

    Attributes:
        environment, mitigations, index: defaults of a call: those of the trial for which a marked test runs, else
            ``local``, ``none`` and 0.
    """

    def __init__(self, item: pytest.Item, extra_env: Mapping[str, str], trial: TrialSpec | None = None) -> None:
        self.item = item
        self.environment = "local" if trial is None else trial.environment.name
        self.mitigations = ("none",) if trial is None else trial.mitigations
        self.index = 0 if trial is None else trial.trial_index
        self._trial = trial
        self._extra_env = extra_env
        #: How many trials of each cell it has started; a test may do so on several threads.
        self._counts: dict[str, Iterator[int]] = {}
        #: The node id without the trial: all trials of a marked test have it in common.
        self._test = item.nodeid
        if trial is not None:
            test, _, parameters = item.nodeid.partition("[")
            others = f"-{parameters.removesuffix(']')}-".replace(f"-{_name_of(trial)}-", "-", 1).strip("-")
            self._test = f"{test}[{others}]" if others else test
        item.stash[PAYLOAD] = ReportPayload()
        self._repeat = self.run.next_repeat(item)

    def __call__(
        self,
        workload: str | type[Any],
        *,
        steps: int | None = None,
        environment: str | None = None,
        mitigations: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        extra_env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        index: int | None = None,
        **unknown: NoReturn,
    ) -> TrialResult:
        """Run one trial in a separate process and wait for its end.

        Args:
            workload: registered name, or a workload class of this or any other file.
            steps: number of steps, for workloads that have this option.
            environment: registered name; default: that of the test's marker, else ``local``.
            mitigations: registered names, later ones win; default: those of the test's marker, else ``none``.
            config: options of the workload.
            extra_env: variables on top of the mitigations'.
            timeout: deadline in seconds.
            index: recorded as the trial's index; default: that of the test's trial, else 0.

        Raises:
            RequestError: a wrong argument, or anything that would prevent every such trial; for an unknown name it is
                a ``RegistryError``.
        """
        __tracebackhide__ = True  # pytest would show the arguments
        check_keywords("aorta_run", self.__call__, unknown)
        run = self.run
        steps = valid.taken(valid.optional(valid.positive_int), steps, "steps")
        timeout = valid.taken(valid.optional(valid.seconds), timeout, "timeout")
        config = valid.taken(valid.options, config or {}, "config")
        environment = self.environment if environment is None else environment
        check_variables("the extra variables", extra_env or {})
        selection = replace(
            run.selection,
            trials=1,
            environments=(valid.taken(valid.name, environment, "environment"),),
            mitigations=(self.mitigation_set(mitigations, "mitigations"),),
            extra_env={**run.selection.extra_env, **(extra_env or {})},
            steps=steps if steps is not None else run.selection.steps,
            config=config,
            execution=in_a_process(run.selection.execution),
            limits=run.selection.limits if timeout is None else replace(run.selection.limits, timeout=timeout),
        )
        entry = run.registry.workload(workload) if isinstance(workload, str) else entry_of(workload)
        index = valid.taken(valid.whole, self.index if index is None else index, "index")
        spec = trials_of([entry], selection, run.registry)[0][0]
        watched = tuple(sorted({*spec.watched, *(() if self._trial is None else self._trial.watched)}))
        spec = replace(spec, trial_index=index, watched=watched, order="", collect=selection.collect_first)
        given = [] if steps is None else [f"steps={steps}"]
        given += [*(f"{key}={value}" for key, value in config.items()), *(extra_env or {})]
        return self.carry_out(spec, shortened(", ".join(given)), extra_env or {})[0]

    def __repr__(self) -> str:
        return "aorta_run"  # in assertions: what pytest shows of aorta_run(...)

    @property
    def run(self) -> SessionRun:
        return run_of(self.item.config)

    def mitigation_set(self, given: Sequence[str] | None, source: str) -> tuple[str, ...]:
        """The names that a call gives, checked, or those of the test's marker."""
        names: tuple[str, ...] = valid.taken(valid.names, self.mitigations if given is None else given, source)
        return names

    def carry_out(
        self,
        spec: TrialSpec,
        options: str,
        extra_env: Mapping[str, str],
        *,
        timeout: float | None = None,
        anew: bool = False,
    ) -> tuple[TrialResult, TrialPaths]:
        """Run one trial, wait for its end, and have its record reported; return the record and the trial's paths.

        Args:
            options: the options of the call as a text, for the table.
            extra_env: variables that the test has given.
            timeout: deadline in seconds, in place of all other deadlines.
            anew: run the trial although ``--aorta-resume`` has a result.
        """
        __tracebackhide__ = True  # pytest would show the variables
        run = self.run
        check_variables("the fixture aorta_extra_env", self._extra_env)
        deadline = timeout or deadline_of(self.item, spec)
        try:
            run.runner.check(spec, deadline)
        except RequestError as error:
            raise error.with_traceback(None) from None  # frames of the engine show nothing that is wrong
        first = paths_in_test(self.item.nodeid, spec.workload.name, spec.cell, 0)
        number = next(self._counts.setdefault(str(first.folder.parent), itertools.count()))
        paths = paths_in_test(self.item.nodeid, spec.workload.name, spec.cell, number)
        paths = paths.repeated(self._repeat.number)
        same = [spec.workload.target, to_plain(dict(spec.overrides)), spec.steps, dict(extra_env), repr(spec.execution)]
        digest = hashlib.sha256(canonical_json(same).encode()).hexdigest()[:16]
        key = CellKey(spec.workload.name, spec.cell, printable(self._test), printable(options), digest)
        if anew:
            spec = replace(spec, overlay={**spec.overlay, **self._extra_env})
            running: TrialJob = run.runner.start(spec, paths, deadline)
        else:
            # A marked test is skipped when its cell is decided; any other test counts on its trials.
            cell = key if self._trial is not None else None
            running = run.launch(self.item, spec, paths, self._extra_env, cell, again=self._repeat.again)
        try:
            record = running.finish()
        except BaseException as error:  # Ctrl-C, or a time limit for the whole test
            why = reason_of(error)
            if isinstance(error, KeyboardInterrupt):
                run.interrupt(why)
            running.interrupt(why)
            run.add_record(self.item, paths, _started_by(key, running.finish()), running.resumed)
            raise
        if (watcher := run.config.stash.get(WATCHER, None)) is not None:
            watcher.trial_ended(paths.file_in(run.results))
        run.add_record(self.item, paths, _started_by(key, record), running.resumed)
        for text in (*running.take_warnings(), *record.warnings):
            self.item.warn(pytest.PytestWarning(text))
        return record, paths


def _started_by(key: CellKey, record: TrialResult) -> TrialResult:
    from pytest_aorta.trials.result import StartedBy  # pydantic, which a record needs anyway

    return record.model_copy(update={"test": StartedBy(node_id=key.test, options=key.options, digest=key.digest)})


def shortened(text: str) -> str:
    text = " ".join(printable(text).split())
    return text if len(text) <= _COLUMN else f"{text[: _COLUMN - 3]}..."


def in_a_process(execution: Execution) -> Execution:
    return replace(execution, isolation="auto") if execution.isolation == "none" else execution


def entry_of(cls: type[Any]) -> WorkloadEntry:
    """A workload class as a registry entry; the trial's process loads it from its file again."""
    if not isinstance(cls, type):
        raise RequestError(f"workload: {valid.quoted(cls)} is not valid; expected a name, or a class")
    if "<locals>" in cls.__qualname__:
        raise RequestError(f"{cls.__qualname__} is defined inside a function; define it at the top of a module")
    file = inspect.getsourcefile(cls)
    name = getattr(cls, "name", None)
    name = name if isinstance(name, str) else cls.__name__
    return WorkloadEntry(name, f"{file}:{cls.__qualname__}", f"file:{file}")


# Tests that are trials

#: Markers that apply in the trial's process, and not to its item.
_INSIDE = frozenset({"skip", "skipif", "xfail", "flaky", "timeout", "usefixtures", "repeat"})

#: Options that change how pytest prints, and those whose values are given apart.
_NOT_HANDED_ON = frozenset(
    {
        *NOT_INSIDE,
        *("verbose", "quiet", "reportchars", "showlocals", "tbstyle", "color", "code_highlight", "fulltrace"),
        *("durations_min", "no_header", "no_summary", "force_short_summary", "disable_warnings", "rootdir"),
        *("inifilename", "cov_source", "cov_report", "no_cov", "reruns", "reruns_delay"),
    }
)


def with_trials(collector: pytest.Collector, report: pytest.CollectReport) -> pytest.CollectReport:
    """Replace tests that are to have trials with their trials."""
    known = current_run(collector.config)
    takes_tests = known is not None and known.takes_tests
    if not takes_tests and not any("aorta" in node.keywords for node in report.result):
        return report  # and no run is made, which a test that starts trials may not be allowed
    run = run_of(collector.config)
    try:
        report.result = [each for node in report.result for each in _in_place_of(node, run)]
    except RequestError as error:
        return pytest.CollectReport(collector.nodeid, "failed", f"{collector.nodeid}: {error}", [])
    return report


def _in_place_of(node: pytest.Item | pytest.Collector, run: SessionRun) -> Sequence[pytest.Item | pytest.Collector]:
    if not isinstance(node, pytest.Item) or isinstance(node, TrialItem) or is_of_recipe(node.nodeid):
        return [node]
    if "aorta_run" in getattr(node, "fixturenames", ()):  # it starts its trials itself, as does aorta_torchrun
        return [node]
    selection, asks = marked_selection(node, run)
    if not asks and not run.takes_tests:
        return [node]
    why, option = "", node.config.option
    if option.usepdb or option.trace:
        why = "a debugger (--pdb, --trace) is of no use in the process of a trial"
    elif getattr(option, "aorta_isolation", None) == "none":
        why = "--aorta-isolation none leaves a trial no process of its own"
    elif node.get_closest_marker("xdist_group") is not None:
        why = "its xdist_group has tests that run in one process"
    if why:
        node.warn(pytest.PytestWarning(f"{node.nodeid} runs once, and not as trials: {why}"))
        return [node]
    for name in itertools.chain.from_iterable(selection.mitigations):
        if run.registry.mitigation(name).options:
            raise RequestError(f"{name}: a test has no options; config.NAME is for workloads")
    if read_option(node.config, "isolation") is None:
        selection = replace(selection, execution=replace(selection.execution, isolation="spawn"))
    return list(_items(node, _plan_of(node, run, selection), run))


def _arguments(config: pytest.Config) -> list[str]:
    """Options of the command line that say how tests are found and run, but not which tests, and not of trials."""
    actions = option_actions(config)
    given = iter(getattr(config, "workerinput", {}).get("aorta_arguments", map(str, config.invocation_params.args)))
    kept = []
    for text in given:
        flags = [text.partition("=")[0]] if text.startswith("--") else [f"-{char}" for char in text[1:]]
        for place, flag in enumerate(flags if text.startswith("-") else ()):
            action = actions.get(flag)
            if action is None:
                break
            words = [flag]
            has_value = action.nargs != 0
            if has_value:
                rest = text[len(flag) + 1 :] if text.startswith("--") else text[place + 2 :]
                inside = "=" in text if text.startswith("--") else bool(rest)
                words.append(rest if inside else next(given, ""))
            is_ours = action.dest.startswith("aorta_") or words[-1].startswith("aorta_")
            if action.dest not in _NOT_HANDED_ON and not is_ours:
                kept += words
            if has_value:
                break
    return [*kept, *(["--no-cov"] if "--no-cov" in actions else [])]


def _items(test: pytest.Item, plan: Plan, run: SessionRun) -> Iterator[TestTrialItem]:
    name, bracket, parameters = test.name.partition("[")
    others = f"{parameters.removesuffix(']')}-" if bracket else ""
    assert isinstance(test.parent, pytest.Collector)
    item: TestTrialItem | None = None
    for spec in plan.trials:
        label = f"{name}[{others}{_name_of(spec)}]"
        item = item_of(TestTrialItem, test.parent, label, run, spec, plan.paths, item)
        item.test = test
        item.own_markers += [mark for mark in test.own_markers if mark.name not in _INSIDE]
        item.keywords.update((mark.name, mark) for mark in item.own_markers)
        run.tests.append(spec)
        yield item


class TestTrialItem(TrialItem):
    __test__ = False
    #: The test that it replaces.
    test: pytest.Item

    @classmethod
    def of(
        cls, parent: pytest.Collector, name: str, function: Callable[..., None], sibling: GeneratedFunction | None
    ) -> Any:
        """Set up no fixture but ``aorta_extra_env`` here: the trial's process sets up those of the test."""
        if sibling is None:
            return cls.with_fixture(parent, name, function, "aorta_extra_env")
        return super().of(parent, name, function, sibling)

    def iter_markers_with_node(self, name: str | None = None) -> Iterator[tuple[Any, pytest.Mark]]:
        return ((node, mark) for node, mark in super().iter_markers_with_node(name) if mark.name not in _INSIDE)

    def reportinfo(self) -> tuple[Path, int, str]:
        path, line, _ = self.test.reportinfo()
        return Path(path), line or 0, self.nodeid.partition("::")[2].replace("::", ".")
