"""Trials inside ordinary tests: the fixture ``aorta_run``, and ``@pytest.mark.aorta`` with ``aorta_trial``."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plan import Selection, check_variables, trials_of
from pytest_aorta.plugin.deadlines import deadline_of
from pytest_aorta.plugin.report_payload import PAYLOAD, ReportPayload
from pytest_aorta.plugin.run import run_of, warn
from pytest_aorta.plugin.sigterm import reason_of
from pytest_aorta.registry import WorkloadEntry
from pytest_aorta.trials.execution import Execution
from pytest_aorta.trials.names import identifier
from pytest_aorta.workspace.paths import trial_paths

if TYPE_CHECKING:
    from pytest_aorta.launch.submitted import RunningTrial
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths

_KEYWORDS = ("trials", "mitigations", "environments", "timeout")


@dataclass(frozen=True)
class Cell:
    """Parameter of a marked test."""

    environment: str
    mitigations: tuple[str, ...]
    index: int

    @property
    def label(self) -> str:
        """As in the names of trial items."""
        names = "+".join(identifier(name) for name in self.mitigations)
        return f"{identifier(self.environment)}-{names}-{self.index}"


class RunTrial:
    """Callable that runs one trial of a workload."""

    def __init__(self, item: pytest.Item, extra_env: Mapping[str, str]) -> None:
        #: The test that starts the trials.
        self.item = item
        self._extra_env = extra_env
        self._count = itertools.count()  # a test may start trials on several threads
        item.stash[PAYLOAD] = ReportPayload()

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
            RegistryError: an unknown name.
            ConfigError, LaunchModeError: what would prevent every such trial.
        """
        __tracebackhide__ = True  # pytest would show the arguments
        run = self.run
        selection = replace(
            run.selection,
            trials=1,
            environments=(environment,),
            mitigations=(tuple(mitigations),),
            extra_env={**run.selection.extra_env, **(extra_env or {})},
            steps=steps if steps is not None else run.selection.steps,
            config=dict(config or {}),
            execution=in_a_process(run.selection.execution),
            limits=run.selection.limits if timeout is None else replace(run.selection.limits, timeout=timeout),
        )
        entry = run.registry.workload(workload) if isinstance(workload, str) else entry_of(workload)
        spec = replace(trials_of([entry], selection, run.registry)[0][0], trial_index=index)
        return self.carry_out(spec)[0]

    @property
    def run(self) -> Run:
        """The run that the test is part of."""
        return run_of(self.item.config)

    def carry_out(
        self, spec: TrialSpec, *, timeout: float | None = None, anew: bool = False
    ) -> tuple[TrialResult, TrialPaths]:
        """Run one trial, wait for its end, and have its record reported; the record, and the trial's paths.

        Args:
            spec: what to run.
            timeout: deadline in seconds that comes before all others.
            anew: whether to run it although ``--aorta-resume`` has a result.
        """
        __tracebackhide__ = True  # pytest would show the variables
        run = self.run
        check_variables("the fixture aorta_extra_env", self._extra_env)
        deadline = timeout or deadline_of(self.item, spec)
        run.runner.check(spec, deadline)
        paths = trial_paths(self.item.nodeid, spec.workload.name, next(self._count))
        if anew:
            spec = replace(spec, overlay={**spec.overlay, **self._extra_env})
            running: RunningTrial = run.runner.start(spec, paths, deadline)
        else:
            running = run.launch(self.item, spec, paths, self._extra_env)
        try:
            record = running.finish()
        except BaseException as error:  # Ctrl-C, or a time limit for the whole test
            why = reason_of(error)
            if isinstance(error, KeyboardInterrupt):
                run.interrupt(why)
            running.interrupt(why)
            run.keep(self.item, paths, running.finish(), running.resumed)
            raise
        run.keep(self.item, paths, record, running.resumed)
        warn(self.item, running)
        return record, paths


class MarkedTrial:
    """The trial that an item of a marked test stands for."""

    def __init__(self, cell: Cell, run: RunTrial) -> None:
        self.index = cell.index
        self.environment = cell.environment
        self.mitigations = cell.mitigations
        self._run = run

    def __call__(
        self,
        workload: str | type[Any],
        *,
        steps: int | None = None,
        config: Mapping[str, Any] | None = None,
        extra_env: Mapping[str, str] | None = None,
    ) -> TrialResult:
        """Run a workload in this trial's cell; arguments as of ``aorta_run``."""
        __tracebackhide__ = True  # pytest would show the arguments
        return self._run(
            workload,
            steps=steps,
            environment=self.environment,
            mitigations=self.mitigations,
            config=config,
            extra_env=extra_env,
            index=self.index,
        )


def in_a_process(execution: Execution) -> Execution:
    """Options of a trial that a test starts: always in a separate process."""
    return replace(execution, isolation="fork") if execution.isolation == "none" else execution


def entry_of(cls: type[Any]) -> WorkloadEntry:
    """A workload class as a registry entry; it is loaded from its file again in the trial's process.

    Raises:
        ValueError: the class is defined inside a function, where no other process can find it.
    """
    if "<locals>" in cls.__qualname__:
        raise ValueError(f"{cls.__qualname__} is defined inside a function; define it at the top of a module")
    file = inspect.getsourcefile(cls)
    name = getattr(cls, "name", None)
    return WorkloadEntry(
        name=name if isinstance(name, str) else cls.__name__,
        target=f"{file}:{cls.__qualname__}",
        source_package=f"file:{file}",
    )


def parametrize(metafunc: pytest.Metafunc) -> None:
    """One item per trial of every cell, trial 0 of every cell first."""
    selection: Selection = run_of(metafunc.config).selection
    given: dict[str, Any] = {}
    for marker in reversed(list(metafunc.definition.iter_markers("aorta"))):
        problem = _problem(marker)
        if problem is not None:
            # As pytest does for wrong markers: one message, and no traceback through the plugin.
            pytest.fail(f"{metafunc.definition.nodeid}: @pytest.mark.aorta {problem}", pytrace=False)
        given.update(marker.kwargs)
    trials = given.get("trials", selection.trials)
    environments = _several(given.get("environments", selection.environments))
    sets = [_names(names) for names in _several(given.get("mitigations", selection.mitigations))]
    cells = [Cell(environment, names, i) for i in range(trials) for environment in environments for names in sets]
    metafunc.parametrize("aorta_trial", cells, indirect=True, ids=[cell.label for cell in cells])


def _problem(marker: pytest.Mark) -> str | None:
    """What is wrong with a marker, and what would be valid; ``None`` when nothing is."""
    unknown = sorted(set(marker.kwargs) - set(_KEYWORDS))
    if unknown or marker.args:
        return f"takes the keywords {', '.join(_KEYWORDS)}, not {', '.join(unknown) or 'positional arguments'}"
    for keyword, value in marker.kwargs.items():
        if not _VALID[keyword][0](value):
            return f"has {keyword}={value!r}; expected {_VALID[keyword][1]}"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _are_names(value: object) -> bool:
    """Whether it is a name, or several."""
    if isinstance(value, str):
        return all(name.strip() for name in value.split(","))
    return isinstance(value, Sequence) and bool(value) and all(isinstance(name, str) and name for name in value)


#: Test and description of what each keyword takes.
_VALID: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "trials": (lambda value: _is_number(value) and isinstance(value, int), "a whole number of at least 1"),
    "environments": (_are_names, "a name, or a list of names"),
    "mitigations": (
        lambda value: isinstance(value, Sequence) and bool(value) and all(map(_are_names, _several(value))),
        "a list of mitigation sets, each a text with commas or a list of names",
    ),
    "timeout": (lambda value: value is None or _is_number(value), "a number of seconds above 0"),
}


def _several(value: Any) -> tuple[Any, ...]:
    """One text is a list of one, and not one of letters."""
    return (value,) if isinstance(value, str) else tuple(value)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    """A mitigation set as a text with commas, or as a sequence."""
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
