"""``@pytest.mark.aorta`` with ``aorta_trial``: an ordinary test has an item for every trial."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import pytest_aorta.settings as valid
from pytest_aorta.plan import Selection, check_axes
from pytest_aorta.plugin.ordinary_tests.aorta_run import Axes, RunTrial
from pytest_aorta.plugin.ordinary_tests.keywords import check_keywords
from pytest_aorta.plugin.refusals import MARKER
from pytest_aorta.plugin.run import run_of
from pytest_aorta.settings import RequestError
from pytest_aorta.trials.names import identifier

if TYPE_CHECKING:
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.trials.result import TrialResult

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
        """Run a workload in this trial's cell; arguments as of ``aorta_run``."""
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
    """A node id without one of its parameters."""
    test, bracket, parameters = node_id.partition("[")
    others = f"-{parameters.removesuffix(']')}-".replace(f"-{label}-", "-", 1).strip("-") if bracket else ""
    return f"{test}[{others}]" if others else test


def checked_marker(metafunc: pytest.Metafunc) -> dict[str, Any]:
    """The keywords of a test's markers, those of the closest one last.

    Raises:
        pytest.fail.Exception: one of them is wrong, or a name is unknown; an error of the collection.
    """
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
    """As pytest does for wrong markers: one message, and no traceback through the plugin."""
    pytest.fail(f"{metafunc.definition.nodeid}: {problem}", pytrace=False)


def _name_problem(run: Run, axes: Mapping[str, Any], more: str) -> str | None:
    """What is wrong with names that do not exist, or are there twice; ``more`` is what gives more trials."""
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
    """What is wrong with a marker, and what would be valid; ``None`` when nothing is."""
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
    """Whether it is a name, or several."""
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
    """One text is a list of one, and not one of letters."""
    return (value,) if isinstance(value, str) else tuple(value)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    """A mitigation set as a text with commas, or as a sequence."""
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
