"""A sweep recipe of AORTA's (``aorta sweep run --recipe``, schema version 1), as its documentation describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.lines import Location, line_of
from pytest_aorta.workflow.table_errors import describe
from pytest_aorta.workflow.tables import PositiveNumber, PositiveWhole, Table


class Confound(Table):
    """When a cell is slower than its baseline, and which that is."""

    threshold: PositiveNumber = 1.15
    baseline_cell: str | None = None


class InlineEnvironment(Table):
    """An environment without a name."""

    docker: str
    env: Mapping[str, str] = Field(default_factory=dict)


Collect = tuple[str, ...] | Mapping[str, Mapping[str, Any]]


class SweepCell(Table):
    """A cell; what it leaves out is as in the whole sweep."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$")
    mitigations: tuple[str, ...] = Field(min_length=1)
    environment: str | InlineEnvironment
    extra_env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    trials: PositiveWhole | None = None
    steps: PositiveWhole | None = None
    workload_config: Mapping[str, Any] = Field(default_factory=dict)
    collect: Collect | None = None


class Sweep(Table):
    """The whole file."""

    schema_version: Literal[1]
    workload: str
    trials: PositiveWhole
    steps: PositiveWhole
    cells: tuple[SweepCell, ...] = Field(min_length=1)
    mode: Literal["matrix"] = "matrix"
    ticket: str | None = None
    confound: Confound = Confound()
    workload_config: Mapping[str, Any] = Field(default_factory=dict)
    extra_env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    trial_isolation: Literal["auto", "in_process", "process"] = "auto"
    save_logs: bool = False
    collect: Collect = ()
    stop_after: Mapping[str, Any] | None = None


def read_sweep(file: Path) -> Sweep:
    """A sweep recipe, checked.

    Raises:
        RequestError: there is nothing to read YAML with.
        RecipeError: it cannot be read, or is not valid; with the line.
    """
    try:
        import yaml
    except ImportError:
        raise RequestError("a sweep recipe is YAML; to read it: pip install 'pytest-aorta[sweeps]'") from None
    try:
        text = file.read_text(encoding="utf-8")
        node = yaml.compose(text, yaml.SafeLoader)
        lines: dict[Location, int] = {(): 1}
        content = None if node is None else yaml.SafeLoader("").construct_document(node)
        if node is not None:
            _add_lines(node, (), lines, file)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read: {error}", file) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error)
        raise RecipeError(f"is not valid YAML: {what}", file, None if mark is None else mark.line + 1) from None
    try:
        sweep = Sweep.model_validate(content)
    except ValidationError as error:
        location, sentence = describe(error, content, Sweep)
        raise RecipeError(sentence, file, line_of(lines, location)) from None
    _check_names(sweep, file, lines)
    return sweep


def _add_lines(node: Any, location: Location, lines: dict[Location, int], file: Path) -> None:
    """Note where the keys and elements of a node stand; pydantic's locations have the same names and indexes.

    Raises:
        RecipeError: a key is there twice, of which YAML would take the last.
    """
    place: Location
    if node.id == "sequence":
        for index, element in enumerate(node.value):
            place = (*location, index)
            lines[place] = element.start_mark.line + 1
            _add_lines(element, place, lines, file)
    elif node.id == "mapping":
        for key, value in node.value:
            place = (*location, str(key.value))
            if place in lines:
                raise RecipeError(f"{_path(place)} is there twice", file, key.start_mark.line + 1)
            lines[place] = key.start_mark.line + 1
            _add_lines(value, place, lines, file)


def _check_names(sweep: Sweep, file: Path, lines: Mapping[Location, int]) -> None:
    names = [cell.name for cell in sweep.cells]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RecipeError(f"two cells have the name {name!r}", file, line_of(lines, ("cells", index, "name")))
    wanted = sweep.confound.baseline_cell
    if wanted is not None and wanted not in names:
        line = line_of(lines, ("confound", "baseline_cell"))
        raise RecipeError(f"confound.baseline_cell = {wanted!r}: there are {', '.join(names)}", file, line)
    for index, cell in enumerate(sweep.cells):
        if isinstance(cell.environment, InlineEnvironment):
            named = {"version": 1, "environments": {"NAME": {"docker": cell.environment.docker}}}
            raise RecipeError(
                f"cells[{index}].environment: an image has a name here: write {json.dumps(named)} into a "
                "registry file, and NAME here",
                file,
                line_of(lines, ("cells", index, "environment")),
            )


def _path(location: Sequence[str | int]) -> str:
    """As AORTA writes it: ``cells[2].mitigations``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")
