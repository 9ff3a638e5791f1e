"""Trials inside ordinary tests: the fixture ``aorta_run``, and ``@pytest.mark.aorta`` with ``aorta_trial``."""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import pytest_aorta.settings as valid
from pytest_aorta.common.texts import printable
from pytest_aorta.plan import Selection, check_axes, check_variables, trials_of
from pytest_aorta.plugin import MARKER
from pytest_aorta.plugin.compat import add_reason, add_section
from pytest_aorta.plugin.failures import failure_text, short_reason
from pytest_aorta.plugin.run import (
    PAYLOAD,
    ReportPayload,
    RowKey,
    deadline_of,
    reason_of,
    run_of,
    warn,
    without_exit_status,
)
from pytest_aorta.registry import Registry, WorkloadEntry
from pytest_aorta.settings import RequestError
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.trials.conversion import identifier, to_plain
from pytest_aorta.trials.execution import Execution
from pytest_aorta.trials.records import canonical_json
from pytest_aorta.workspace.paths import paths_in_test

if TYPE_CHECKING:
    from pytest_aorta.launch.engine import RunningTrial
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths


def check_keywords(fixture: str, call: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Refuse the keywords that a fixture does not have, and name those of ``call``, which has."""
    __tracebackhide__ = True
    names = ", ".join(repr(name) for name in unknown)
    if names:
        parameters = inspect.signature(call).parameters.values()
        known = ", ".join(each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY)
        raise RequestError(f"{fixture} has no keyword {names}; it takes {known}")


#: Longest text of the options in the table.
_COLUMN = 60


@dataclass(frozen=True)
class Axes:
    """Environments and mitigation sets of a marked test."""

    environments: tuple[str, ...] = ()
    mitigations: tuple[tuple[str, ...], ...] = ()

    def variables(self, registry: Registry) -> set[str]:
        """Names of the variables that any cell sets."""
        bundles = [registry.environment(name).env for name in self.environments]
        bundles += [registry.mitigation(name).env for names in self.mitigations for name in names]
        return {name for bundle in bundles for name in bundle}


class RunTrial:
    """Callable that runs one trial of a workload."""

    def __init__(self, item: pytest.Item, extra_env: Mapping[str, str]) -> None:
        #: The test that starts the trials.
        self.item = item
        #: Of the test, where its trials are in several cells.
        self.axes = Axes()
        self._extra_env = extra_env
        #: How many trials of each cell it has started; a test may do so on several threads.
        self._counts: dict[str, Iterator[int]] = {}
        #: What the trials of a marked test have in common, where its node id says more.
        self.test = item.nodeid
        item.stash[PAYLOAD] = ReportPayload()
        item.user_properties = without_exit_status(item)
        self.occurrence = self.run.repeats.next(item)

    def __call__(
        self,
        workload: str | type[Any],
        *,
        steps: int | None = None,
        environment: str = "local",
        mitigations: Sequence[str] = ("none",),
        config: Mapping[str, Any] | None = None,
        extra_env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        index: int = 0,
        **unknown: NoReturn,
    ) -> TrialResult:
        """Run one trial in a separate process and wait for its end.

        Args:
            workload: registered name, or a workload class of this or any other file.
            steps: number of steps, for workloads that have this option.
            environment: registered name.
            mitigations: registered names, later ones win.
            config: options of the workload.
            extra_env: variables on top of the mitigations'.
            timeout: deadline in seconds.
            index: recorded as the trial's index.

        Raises:
            RequestError: an argument that cannot be, or what would prevent every such trial; of an unknown name it is
                a ``RegistryError``.
        """
        __tracebackhide__ = True  # pytest would show the arguments
        check_keywords("aorta_run", self.__call__, unknown)
        run = self.run
        steps = valid.taken(valid.optional(valid.positive_int), steps, "steps")
        timeout = valid.taken(valid.optional(valid.seconds), timeout, "timeout")
        config = valid.taken(valid.options, config or {}, "config")
        check_variables("the extra variables", extra_env or {})
        selection = replace(
            run.selection,
            trials=1,
            environments=(valid.taken(valid.name, environment, "environment"),),
            mitigations=(valid.taken(valid.names, mitigations, "mitigations"),),
            extra_env={**run.selection.extra_env, **(extra_env or {})},
            steps=steps if steps is not None else run.selection.steps,
            config=config,
            execution=in_a_process(run.selection.execution),
            limits=run.selection.limits if timeout is None else replace(run.selection.limits, timeout=timeout),
        )
        entry = run.registry.workload(workload) if isinstance(workload, str) else entry_of(workload)
        index = valid.taken(valid.whole, index, "index")
        spec = trials_of([entry], selection, run.registry)[0][0]
        watched = sorted({*spec.watched, *self.axes.variables(run.registry)})
        spec = replace(spec, trial_index=index, watched=tuple(watched))
        return self.carry_out(spec, options_text(steps, config, extra_env or {}), extra_env or {})[0]

    def __repr__(self) -> str:
        return "aorta_run"  # in assertions: what pytest shows of aorta_run(...)

    @property
    def run(self) -> Run:
        """The run that the test is part of."""
        return run_of(self.item.config)

    def carry_out(
        self,
        spec: TrialSpec,
        options: str,
        extra_env: Mapping[str, str],
        *,
        timeout: float | None = None,
        anew: bool = False,
    ) -> tuple[TrialResult, TrialPaths]:
        """Run one trial, wait for its end, and have its record reported; the record, and the trial's paths.

        Args:
            spec: what to run.
            options: as the test has given them, for the table.
            extra_env: variables that the test has given.
            timeout: deadline in seconds that comes before all others.
            anew: whether to run it although ``--aorta-resume`` has a result.
        """
        __tracebackhide__ = True  # pytest would show the variables
        run = self.run
        check_variables("the fixture aorta_extra_env", self._extra_env)
        deadline = timeout or deadline_of(self.item, spec)
        try:
            run.runner.check(spec, deadline)
        except RequestError as error:
            raise error.with_traceback(None) from None  # that of the engine shows nothing that is wrong
        paths = self._next_paths(spec)
        row = RowKey(self.test, options, _digest_of(spec, extra_env))
        if anew:
            spec = replace(spec, overlay={**spec.overlay, **self._extra_env})
            running: RunningTrial = run.runner.start(spec, paths, deadline)
        else:
            # A test that stands for a trial of a cell is skipped with it; any other counts on its trials.
            key = CellKey(spec.workload.name, spec.cell, **vars(row)) if self.axes.mitigations else None
            running = run.launch(self.item, spec, paths, self._extra_env, key, again=self.occurrence.again)
        try:
            record = running.finish()
        except BaseException as error:  # Ctrl-C, or a time limit for the whole test
            why = reason_of(error)
            if isinstance(error, KeyboardInterrupt):
                run.interrupt(why)
            running.interrupt(why)
            run.add_record(self.item, paths, running.finish(), running.resumed, row)
            raise
        if run.watcher is not None:
            run.watcher.trial_ended(paths.file_in(run.results))
        run.add_record(self.item, paths, record, running.resumed, row)
        warn(self.item, [*running.take_warnings(), *record.warnings])
        return record, paths

    def _next_paths(self, spec: TrialSpec) -> TrialPaths:
        first = paths_in_test(self.item.nodeid, spec.workload.name, spec.cell, 0)
        number = next(self._counts.setdefault(str(first.folder.parent), itertools.count()))
        paths = paths_in_test(self.item.nodeid, spec.workload.name, spec.cell, number)
        return paths.repeated(self.occurrence.number)


def options_text(steps: int | None, config: Mapping[str, Any], extra_env: Mapping[str, str]) -> str:
    found = [] if steps is None else [f"steps={steps}"]
    found += [f"{key}={value}" for key, value in config.items()]
    return shortened(", ".join([*found, *extra_env]))


def shortened(text: str) -> str:
    """For a column of the table."""
    text = " ".join(printable(text).split())
    return text if len(text) <= _COLUMN else f"{text[: _COLUMN - 3]}..."


def _digest_of(spec: TrialSpec, extra_env: Mapping[str, str]) -> str:
    parts = [spec.workload.target, to_plain(dict(spec.overrides)), spec.steps, dict(extra_env), repr(spec.execution)]
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:16]


def in_a_process(execution: Execution) -> Execution:
    """Options of a trial that a test starts: always in a separate process."""
    return replace(execution, isolation="fork") if execution.isolation == "none" else execution


def entry_of(cls: type[Any]) -> WorkloadEntry:
    """A workload class as a registry entry; it is loaded from its file again in the trial's process.

    Raises:
        RequestError: it is no class, or defined inside a function, where no other process can find it.
    """
    if not isinstance(cls, type):
        raise RequestError(f"workload: {valid.shown(cls)} is not valid; expected a name, or a class")
    if "<locals>" in cls.__qualname__:
        raise RequestError(f"{cls.__qualname__} is defined inside a function; define it at the top of a module")
    file = inspect.getsourcefile(cls)
    name = getattr(cls, "name", None)
    return WorkloadEntry(
        name=name if isinstance(name, str) else cls.__name__,
        target=f"{file}:{cls.__qualname__}",
        source_package=f"file:{file}",
    )


_KEYWORDS = ("trials", "mitigations", "environments", "timeout")


@dataclass(frozen=True)
class Cell:
    """Parameter of a marked test; ``axes`` are those that its cell is on."""

    environment: str
    mitigations: tuple[str, ...]
    index: int
    axes: Axes

    @property
    def label(self) -> str:
        """As in the names of trial items."""
        names = "+".join(identifier(name) for name in self.mitigations)
        return f"{identifier(self.environment)}-{names}-{self.index}"

    def value(self) -> dict[str, Any]:
        """For conditions on trials; the workload is known to the test only."""
        return {"environment": self.environment, "mitigations": list(self.mitigations), "trial": self.index}


class MarkedTrial:
    """The trial that an item of a marked test stands for."""

    def __init__(self, cell: Cell, run: RunTrial) -> None:
        self.index = cell.index
        self.environment = cell.environment
        self.mitigations = cell.mitigations
        self._run = run
        run.axes = cell.axes
        run.test = _without(run.item.nodeid, cell.label)

    def __call__(
        self,
        workload: str | type[Any],
        *,
        steps: int | None = None,
        config: Mapping[str, Any] | None = None,
        extra_env: Mapping[str, str] | None = None,
        **unknown: NoReturn,
    ) -> TrialResult:
        __tracebackhide__ = True  # pytest would show the arguments
        check_keywords("aorta_trial", self.__call__, unknown)
        return self._run(
            workload,
            steps=steps,
            environment=self.environment,
            mitigations=self.mitigations,
            config=config,
            extra_env=extra_env,
            index=self.index,
        )

    def __repr__(self) -> str:
        return "aorta_trial"


def _without(node_id: str, label: str) -> str:
    test, bracket, parameters = node_id.partition("[")
    others = f"-{parameters.removesuffix(']')}-".replace(f"-{label}-", "-", 1).strip("-") if bracket else ""
    return f"{test}[{others}]" if others else test


def checked_marker(metafunc: pytest.Metafunc) -> dict[str, Any]:
    """The keywords of a test's markers, those of the closest one last."""
    __tracebackhide__ = True
    run = run_of(metafunc.config)
    given: dict[str, Any] = {}
    for marker in reversed(list(metafunc.definition.iter_markers("aorta"))):
        problem = _problem(marker)
        if problem is not None:
            _refuse(metafunc, f"{MARKER} {problem}")
        problem = _name_problem(run, marker.kwargs, "trials=")
        if problem is not None:
            _refuse(metafunc, f"{MARKER}: {problem}")
        given.update(marker.kwargs)
    if "trials" in given:
        given["trials"] = valid.positive_int(given["trials"])
    return given


def parametrize(metafunc: pytest.Metafunc, given: Mapping[str, Any]) -> None:
    """One item per trial of every cell, trial 0 of every cell first; ``given`` are the keywords of its markers."""
    __tracebackhide__ = True
    run = run_of(metafunc.config)
    selection: Selection = run.selection
    options = {name: getattr(selection, name) for name in ("environments", "mitigations") if name not in given}
    problem = _name_problem(run, options, "--aorta-trials")
    if problem is not None:
        _refuse(metafunc, problem)
    trials = given.get("trials", selection.trials)
    environments = _several(given.get("environments", selection.environments))
    sets = [_names(names) for names in _several(given.get("mitigations", selection.mitigations))]
    axes = Axes(environments, tuple(sets))
    cells = [Cell(environment, names, i, axes) for i in range(trials) for environment in environments for names in sets]
    metafunc.parametrize("aorta_trial", cells, indirect=True, ids=[cell.label for cell in cells])


def _refuse(metafunc: pytest.Metafunc, problem: str) -> NoReturn:
    pytest.fail(f"{metafunc.definition.nodeid}: {problem}", pytrace=False)


def _name_problem(run: Run, axes: Mapping[str, Any], more: str) -> str | None:
    environments = _several(axes.get("environments", ()))
    sets = [_names(names) for names in _several(axes.get("mitigations", ()))]
    try:
        for environment in environments:
            run.registry.environment(environment)
        for name in itertools.chain.from_iterable(sets):
            run.registry.mitigation(name)
        check_axes(environments, sets, more)
    except RequestError as error:
        return str(error)
    return None


def _problem(marker: pytest.Mark) -> str | None:
    unknown = sorted(set(marker.kwargs) - set(_KEYWORDS))
    if unknown or marker.args:
        return f"takes the keywords {', '.join(_KEYWORDS)}, not {', '.join(unknown) or 'positional arguments'}"
    for keyword, value in marker.kwargs.items():
        try:
            _VALID[keyword](value)
        except ValueError as error:
            return f"has {keyword}={valid.shown(value)}; expected {error}"
    return None


def _are_names(value: object) -> bool:
    if isinstance(value, str):
        return all(name.strip() for name in value.split(","))
    return isinstance(value, Sequence) and bool(value) and all(isinstance(name, str) and name for name in value)


def _environments(value: Any) -> None:
    if not _are_names(value):
        raise ValueError("a name, or a list of names")


def _mitigations(value: Any) -> None:
    if not (isinstance(value, Sequence) and value and all(map(_are_names, _several(value)))):
        raise ValueError("a list of mitigation sets, each a text with commas or a list of names")


#: What each keyword takes.
_VALID: Mapping[str, valid.Reader] = {
    "trials": valid.positive_int,
    "environments": _environments,
    "mitigations": _mitigations,
    "timeout": valid.optional(valid.seconds),
}


def _several(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)


#: Trials of one test that are shown in full.
_SHOWN = 3


def add_failed_trials(report: pytest.TestReport, item: pytest.Item) -> None:
    """Show the failed trials of a failed test as those of trial items are shown, the reason of the first one in the
    short summary as well."""
    failed = [trial for trial in item.stash[PAYLOAD].trials if trial.result["exit_status"] != "ok"]
    if not failed:
        return
    from pytest_aorta.trials.result import TrialResult

    records = [TrialResult.from_dict(trial.result) for trial in failed[:_SHOWN]]
    add_reason(report.longrepr, short_reason(records[0]))
    if item.config.option.tbstyle == "line":
        return
    results = run_of(item.config).results
    for trial, record in zip(failed, records, strict=False):
        title = printable(f"trial of {record.workload} in {record.cell}")
        add_section(report.longrepr, title, failure_text(record, results / trial.path, item))
    if len(failed) > _SHOWN:
        files = "\n".join(str(results / trial.path) for trial in failed[_SHOWN:])
        add_section(report.longrepr, f"{len(failed) - _SHOWN} more failed trials", printable(files))
