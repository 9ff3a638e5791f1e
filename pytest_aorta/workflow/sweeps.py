"""A sweep recipe of AORTA's (``aorta sweep run --recipe``, schema version 1) as the text of a recipe.

The cells of an action are all environments with all mitigation sets. Variables and options of a cell are part of its
mitigation set; cells that differ in steps or collectors, or are no such product, are actions of their own.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from pytest_aorta.common.texts import identifier
from pytest_aorta.plan import option_text
from pytest_aorta.probe.variables import is_secret_name
from pytest_aorta.registry import BUILTIN_MITIGATIONS, variable_from
from pytest_aorta.settings import OPTION, RequestError
from pytest_aorta.workflow.finding import RecipeError
from pytest_aorta.workflow.recipe import Location, PositiveWhole, Recipe, Table, describe, line_of, parse_recipe

_ISOLATION = {"process": "spawn", "in_process": "none"}


Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Confound(Table):
    """When a cell is slower than its baseline, and which that is."""

    threshold: Positive | None = None
    baseline_cell: str | None = None


class InlineEnvironment(Table):
    docker: str
    env: Mapping[str, str] = Field(default_factory=dict)


class StopAfter(Table):
    """A cell ends after so many events, and with ``max_trials`` at the latest."""

    events: PositiveWhole
    max_trials: PositiveWhole
    event_verdict: Literal["fail", "pass", "error"] = "fail"

    def keys(self) -> dict[str, Any]:
        """Of an action."""
        return {"trials": self.max_trials} | ({"stop_after": self.events} if self.event_verdict == "fail" else {})

    def notes(self) -> Iterator[str]:
        if self.event_verdict != "fail":
            yield f"stop_after: event_verdict: {self.event_verdict}: only failures end the trials of a cell"


Collect = tuple[str, ...] | Mapping[str, Mapping[str, Any]]


class SweepCell(Table):
    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$")
    mitigations: tuple[str, ...] = Field(min_length=1)
    environment: str | InlineEnvironment
    extra_env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    trials: PositiveWhole | None = None
    steps: PositiveWhole | None = None
    workload_config: Mapping[str, Any] = Field(default_factory=dict)
    collect: Collect | None = None


class Common(Table):
    """What all kinds of sweeps have."""

    schema_version: Literal[1]
    trials: PositiveWhole
    ticket: str | None = None
    confound: Confound = Confound()
    collect: Collect = ()
    stop_after: StopAfter | None = None


class Sweep(Common):
    workload: str
    steps: PositiveWhole
    cells: tuple[SweepCell, ...] = Field(min_length=1)
    mode: Literal["matrix"] = "matrix"
    workload_config: Mapping[str, Any] = Field(default_factory=dict)
    extra_env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    trial_isolation: Literal["auto", "in_process", "process"] = "auto"
    save_logs: bool = False


class OutputPattern(Table):
    """What is looked for in the output of a command."""

    id: str
    match: Mapping[str, Any]
    on_match: str = "fail"


class Probe(Common):
    """``mode: probe``: a command, under each mitigation with each diagnostic."""

    mode: Literal["probe"]
    mitigation_axis: tuple[str, ...] = Field(min_length=1)
    diagnostic_axis: tuple[str, ...] = Field(min_length=1)
    timeout_per_trial: Positive | None = None
    custom_patterns: tuple[OutputPattern, ...] = ()
    step_time_regex: str | None = None
    collect_paths: tuple[str, ...] = ()
    env_passthrough_mode: Literal["inherit", "file"] = "inherit"
    hang_window_sec: Positive | None = None
    hang_grace_period_at_start: float | None = None
    tier3_vram_growth: bool = True
    disable_detectors: tuple[str, ...] = ()
    disable_detector_tiers: tuple[str | int, ...] = ()
    retain: Any = None
    redaction: Any = None


class Sanitizers(BaseModel):
    """``mode: sanitizer``, or with a ``sanitizer_plan``: analyzers of GPU code, which AORTA itself runs."""

    sanitizer_plan: Mapping[str, Any]
    ticket: str | None = None


def read_sweep(file: Path) -> Sweep | Probe | Sanitizers:
    """A sweep recipe, checked; raises ``RecipeError`` with the line, or ``RequestError`` where YAML cannot be read."""
    try:
        import yaml
    except ImportError:
        raise RequestError("a sweep recipe is YAML; to read it: pip install 'pytest-aorta[sweeps]'") from None
    lines: dict[Location, int] = {(): 1}
    try:
        node = yaml.compose(file.read_text(encoding="utf-8"), yaml.SafeLoader)
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
        table = content if isinstance(content, dict) else {}
        kind = Sanitizers if "sanitizer_plan" in table else Probe if table.get("mode") == "probe" else Sweep
        sweep = kind.model_validate(content)
    except ValidationError as error:
        location, sentence = describe(error, content)
        raise RecipeError(sentence, file, line_of(lines, location)) from None
    if not isinstance(sweep, Sweep):
        return sweep
    names = [cell.name for cell in sweep.cells]
    for index, cell in enumerate(sweep.cells):
        if cell.name in names[:index]:
            line = line_of(lines, ("cells", index, "name"))
            raise RecipeError(f"two cells have the name {cell.name!r}", file, line)
    wanted = sweep.confound.baseline_cell
    if wanted is not None and wanted not in names:
        line = line_of(lines, ("confound", "baseline_cell"))
        raise RecipeError(f"confound.baseline_cell = {wanted!r}: there are {', '.join(names)}", file, line)
    return sweep


def _add_lines(node: Any, location: Location, lines: dict[Location, int], file: Path) -> None:
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
                raise RecipeError(f"{'.'.join(map(str, place))} is there twice", file, key.start_mark.line + 1)
            lines[place] = key.start_mark.line + 1
            _add_lines(value, place, lines, file)


@dataclass
class _Action:
    keys: Mapping[str, Any]
    cells: list[SweepCell]
    environments: list[str]
    mitigations: list[str]


def read_as_recipe(file: Path) -> tuple[Recipe, list[str]]:
    """The recipe that a sweep recipe is, and what of it has no counterpart."""
    text, notes = converted(read_sweep(file), file)
    return parse_recipe(text, file), notes


def converted(sweep: Sweep | Probe | Sanitizers, file: Path, command: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The text of a recipe, and what of the sweep in ``file`` is not in it.

    ``command``: the words that a probe is about. Raises ``RequestError`` for a value that TOML does not have, a probe
    without a command, a command of another sweep.
    """
    if isinstance(sweep, Probe):
        return _of_probe(sweep, file, command)
    if command:
        raise RequestError(f"{shlex.join(command)}: only a recipe with mode: probe is about a command")
    if isinstance(sweep, Sanitizers):
        runs = ["aorta", "sweep", "run", "--recipe", os.path.abspath(file)]
        note = "sanitizer_plan: AORTA's own analyzers run it (pip install amd-aorta); here, that is a trial"
        table = {"command": shlex.join(runs), "trials": 1}
        return _text([(identifier(file.stem), table, [])], sweep.ticket, [note]), [note]
    names = _Names(sweep)
    actions = _actions(sweep, names)
    wanted, threshold = sweep.confound.baseline_cell, sweep.confound.threshold
    named = [cell for cell in sweep.cells if cell.name == wanted or (not wanted and cell.name.startswith("baseline-"))]
    plain = [cell for cell in sweep.cells if cell.mitigations == ("none",)]
    baseline = next(iter([*named, *plain]), None)
    notes = [*sweep.stop_after.notes()] if sweep.stop_after is not None else []
    if threshold is not None and not 1 < threshold < 2:
        notes.append(f"confound.threshold {threshold}: speed_margin is a share above 0 and below 1")
    notes += _collector_options([sweep.collect, *(cell.collect for cell in sweep.cells)])
    home = next((action for action in actions if baseline in action.cells), None)
    for action in actions:
        if home is not None and action is not home and baseline is not None:
            cells = ", ".join(cell.name for cell in action.cells)
            notes.append(
                f"the comparison of {cells} with {baseline.name}, of another action: pytest-aorta compare "
                f"workspace/{home.cells[0].name} workspace/{action.cells[0].name}"
            )
    tables = [
        (
            identifier(file.stem) if len(actions) == 1 else action.cells[0].name,
            _table(sweep, action, names, baseline),
            [f"{cell.name}: {names.label(cell)}" for cell in action.cells],
        )
        for action in actions
    ]
    return _text(tables, sweep.ticket, notes, names.defined), notes


def _text(
    actions: Sequence[tuple[str, Mapping[str, Any], list[str]]],
    ticket: str | None,
    notes: list[str],
    defined: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> str:
    lines = [f"# ticket: {_comment(ticket)}"] if ticket else []
    lines += [f"# not converted: {_comment(note)}" for note in notes]
    for name, table, comments in actions:
        lines += ["", *(f"# {_comment(comment)}" for comment in comments), "[[action]]"]
        lines += [f"{key} = {_toml(value, key)}" for key, value in {"name": name, **table}.items()]
    for kind, named in defined.items():
        if named:
            lines += ["", f"[{kind}]"]
        lines += [f"{_key(name)} = {_toml(value, f'{kind}.{name}')}" for name, value in named.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


#: Keys of a probe without a counterpart, and what there is in their place.
_OF_PROBES = {
    "step_time_regex": "metric, with a group (?P<step>...)",
    "collect_paths": 'the output is always kept, and with cwd = "fresh" what a trial writes',
    "hang_window_sec": "stall_timeout, in seconds without a step",
    "hang_grace_period_at_start": "stall_timeout begins with the first step",
    "retain": "all artifacts are kept",
    "redaction": "values of variables that may be secrets are never recorded",
}


#: What AORTA's probes look for in the output of every command, and what finds it here.
_TIER_4 = {
    "tier4:python_traceback": (r"^Traceback \(most recent call last\):",),
    "tier4:hip_error": ("@hip-fault", "@oom"),
    "tier4:cuda_error": ("@cuda-error", "@oom"),
    "tier4:rocm_error": (r"Error code: \d+",),
    "tier4:nccl_rccl_error": ("@nccl",),
    "tier4:collective_timeout": ("@watchdog",),
    "tier4:nan_signature": ("@nan",),
}


def _of_probe(probe: Probe, file: Path, command: Sequence[str]) -> tuple[str, list[str]]:
    if not command:
        raise RequestError(f"mode: probe is about a command: pytest-aorta convert {file} -- python train.py")
    cells = {
        f"{mitigation}-{diagnostic}": _mitigations([mitigation, diagnostic], {})
        for mitigation, diagnostic in itertools.product(probe.mitigation_axis, probe.diagnostic_axis)
    }
    wanted = probe.confound.baseline_cell or ("none-none" if "none-none" in cells else next(iter(cells)))
    if wanted not in cells:
        raise RequestError(f"confound.baseline_cell = {wanted!r}: there are {', '.join(cells)}")
    switched_off = {*probe.disable_detectors, *map(str, probe.disable_detector_tiers)}
    known = {} if switched_off & {"4", "tier4"} else _TIER_4
    fail_on = list(dict.fromkeys(each for name, found in known.items() if name not in switched_off for each in found))
    others: list[str] = []
    for pattern in probe.custom_patterns:
        regex = pattern.match.get("regex")
        (fail_on if pattern.on_match == "fail" and isinstance(regex, str) else others).append(regex or pattern.id)
    table: dict[str, Any] = {"command": shlex.join(command), "trials": probe.trials}
    table |= probe.stop_after.keys() if probe.stop_after else {}
    table["mitigations"] = list(dict.fromkeys(cells.values()))
    if len(cells) > 1:
        table["baseline"] = cells[wanted]
    table |= {"timeout": probe.timeout_per_trial} if probe.timeout_per_trial else {}
    table |= {"fail_on": fail_on} if fail_on else {}
    table |= {"collect": collect} if (collect := _collect(probe.collect)) else {}
    notes = [f"{key}: {text}" for key, text in _OF_PROBES.items() if getattr(probe, key)]
    notes += probe.stop_after.notes() if probe.stop_after else ()
    notes += [f"custom_patterns: {pattern}" for pattern in others] + list(_collector_options([probe.collect]))
    comments = [f"{name}: {text}" for name, text in cells.items()]
    return _text([(identifier(file.stem), table, comments)], probe.ticket, notes), notes


def _mitigations(names: Sequence[str], variables: Mapping[str, str]) -> str:
    """A mitigation set as a text."""
    found = [name for name in names if name != "none"] + [f"{name}={value}" for name, value in variables.items()]
    return ",".join(dict.fromkeys(found)) or "none"


def _actions(sweep: Sweep, names: _Names) -> list[_Action]:
    found: list[_Action] = []
    for cell in sweep.cells:
        collect = _collect(sweep.collect if cell.collect is None else cell.collect)
        keys = {"steps": cell.steps or sweep.steps, "collect": collect}
        environment, text = names.environment(cell), names.mitigations(cell)
        for action in found:
            same = action.keys == keys and action.environments == [environment]
            if same and text not in action.mitigations:
                action.cells.append(cell)
                action.mitigations.append(text)
                break
        else:
            found.append(_Action(keys, [cell], [environment], [text]))
    merged: list[_Action] = []
    for action in found:
        for other in merged:
            same = other.keys == action.keys and other.mitigations == action.mitigations
            if same and action.environments[0] not in other.environments:
                other.environments += action.environments
                other.cells += action.cells
                break
        else:
            merged.append(action)
    return merged


#: AORTA's own environments for GPUs in software, and the profile of its emulator that each runs under.
_EMULATED = {"emulated-rocjitsu": "mi350x", "emulated-rocjitsu-dbt": "dbt-mi350x"}


class _Names:
    """What the cells of a sweep are called in a recipe, and the names that it defines for them.

    What only some cells have of variables and options is part of their mitigation sets: as ``NAME=VALUE`` where that
    can be written so and shown, otherwise as a mitigation with the name of the cell.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._of = {
            cell.name: {**sweep.extra_env, **cell.extra_env}
            | {f"{OPTION}{name}": value for name, value in {**sweep.workload_config, **cell.workload_config}.items()}
            for cell in sweep.cells
        }
        texts = [{name: option_text(value) for name, value in each.items()} for each in self._of.values()]
        shared = set.intersection(*(set(each.items()) for each in texts))
        first = next(iter(self._of.values()))
        #: Variables, and ``config.NAME``, of all cells.
        self.shared = {name: value for name, value in first.items() if (name, option_text(value)) in shared}
        self.defined: dict[str, dict[str, Any]] = {"mitigation": {}, "environment": {}}

    def environment(self, cell: SweepCell) -> str:
        inline = cell.environment
        if isinstance(inline, str):
            if inline in _EMULATED:
                self.defined["environment"][inline] = {"launcher": f"mirage run --profile {_EMULATED[inline]} --"}
            return "local" if inline == "default" else inline
        named, table = self.defined["environment"], inline.model_dump(exclude_defaults=True)
        plain = re.sub(r"[^A-Za-z0-9_.]+", "_", inline.docker.rpartition("/")[2]).strip("_") or "image"
        names = itertools.chain([plain], (f"{plain}_{number}" for number in itertools.count(2)))
        return next(name for name in names if named.setdefault(name, table) == table)

    def mitigations(self, cell: SweepCell) -> str:
        own = {name: value for name, value in self._of[cell.name].items() if name not in self.shared}
        texts = {name: option_text(value) if name.startswith(OPTION) else value for name, value in own.items()}
        if any(
            "," in text or is_secret_name(name) or variable_from(f"{name}={text}") is None
            for name, text in texts.items()
        ):
            taken = cell.name in {each.name for each in BUILTIN_MITIGATIONS}
            name = f"{cell.name}_cell" if taken else cell.name
            self.defined["mitigation"][name] = own
            return _mitigations([*cell.mitigations, name], {})
        return _mitigations(cell.mitigations, texts)

    def label(self, cell: SweepCell) -> str:
        return f"{identifier(self.environment(cell))}-{'+'.join(map(identifier, self.mitigations(cell).split(',')))}"


def _table(sweep: Sweep, action: _Action, names: _Names, baseline: SweepCell | None) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "workload": sweep.workload,
        "environments": action.environments,
        "mitigations": action.mitigations,
        "trials": sweep.trials,
    }
    if sweep.stop_after is not None:
        keys |= sweep.stop_after.keys()
    else:
        keys["cell_trials"] = {names.label(cell): cell.trials for cell in action.cells if cell.trials is not None}
    keys["config"] = {
        name.removeprefix(OPTION): value for name, value in names.shared.items() if name.startswith(OPTION)
    }
    keys["extra_env"] = {name: value for name, value in names.shared.items() if not name.startswith(OPTION)}
    keys |= action.keys
    keys = {name: value for name, value in keys.items() if value}
    if sweep.confound.threshold is not None and 1 < sweep.confound.threshold < 2:
        keys["speed_margin"] = round(sweep.confound.threshold - 1, 6)
    if sweep.trial_isolation in _ISOLATION:
        keys["isolation"] = _ISOLATION[sweep.trial_isolation]
    if baseline is not None and baseline in action.cells and len(action.cells) > 1:
        several = len(action.environments) > 1
        keys["baseline"] = names.label(baseline) if several else names.mitigations(baseline)
    return keys


def _collect(collect: Collect) -> list[str]:
    return [name for name in collect if name != "proton"]


def _collector_options(collects: Sequence[Collect | None]) -> Iterator[str]:
    if any("proton" in (collect or ()) for collect in collects):
        yield "collect: proton: in a command, python -m triton.profiler.proton before the script; or collect profile"
    if any(isinstance(collect, Mapping) and any(collect.values()) for collect in collects):
        yield "collect: options of collectors"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _comment(text: str | None) -> str:
    return " ".join(json.dumps(text or "", ensure_ascii=True)[1:-1].split())


def _toml(value: Any, key: str) -> str:
    import tomlkit

    for name, each in value.items() if isinstance(value, Mapping) else ():
        _toml(each, f"{key}.{name}")  # to name what is wrong
    try:
        if isinstance(value, Mapping):
            table = tomlkit.inline_table()
            table.update({str(name): each for name, each in value.items()})
            text = table.as_string()
        else:
            text = tomlkit.item(value).as_string()
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{key} has a text with a lone surrogate, which TOML cannot have") from None
    except (ValueError, TypeError):
        expected = "expected a text, a number, true, false or a table"
        raise RequestError(f"{key} = {value!r}: TOML has no such value; {expected}") from None
    return text
