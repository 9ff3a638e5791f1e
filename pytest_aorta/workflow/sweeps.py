"""A sweep recipe of AORTA's (``aorta sweep run --recipe``, schema version 1), converted to the text of a recipe.

The cells of an action are all environments with all mitigation sets. Variables and options of a cell are part of its
mitigation set. Cells become actions of their own where they differ in steps or collectors, or are no such product.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from pytest_aorta.common.texts import identifier
from pytest_aorta.plan import option_text
from pytest_aorta.probe.variables import is_secret_name
from pytest_aorta.registry import BUILTIN_MITIGATIONS, variable_from
from pytest_aorta.settings import OPTION, RequestError
from pytest_aorta.workflow.finding import RecipeError
from pytest_aorta.workflow.recipe import PositiveWhole, Recipe, parse_recipe
from pytest_aorta.workflow.tables import StrictTable, line_of, read_yaml, validated

_ISOLATION = {"process": "spawn", "in_process": "none"}

#: AORTA's environments for GPUs in software, and the profile of its emulator for each.
_EMULATED = {"emulated-rocjitsu": "mi350x", "emulated-rocjitsu-dbt": "dbt-mi350x"}

#: Keys of a probe without a counterpart, and what takes their place.
_OF_PROBES = {
    "step_time_regex": "metric, with a group (?P<step>...)",
    "collect_paths": 'the output is always kept, and with cwd = "fresh" what a trial writes',
    "hang_window_sec": "stall_timeout, in seconds without a step",
    "hang_grace_period_at_start": "stall_timeout begins with the first step",
    "retain": "all artifacts are kept",
    "redaction": "values of variables that may be secrets are never recorded",
}

#: What AORTA's probes look for in the output of every command, and the patterns for it here.
_TIER_4 = {
    "tier4:python_traceback": (r"^Traceback \(most recent call last\):",),
    "tier4:hip_error": ("@hip-fault", "@oom"),
    "tier4:cuda_error": ("@cuda-error", "@oom"),
    "tier4:rocm_error": (r"Error code: \d+",),
    "tier4:nccl_rccl_error": ("@nccl",),
    "tier4:collective_timeout": ("@watchdog",),
    "tier4:nan_signature": ("@nan",),
}


def _toml(value: Any) -> Any:
    """The value as TOML writes it; raises ``ValueError`` where TOML has no such value."""
    import tomlkit

    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        table.update({str(name): _toml(each) for name, each in value.items()})
        return table
    try:
        item = tomlkit.item(value)
        item.as_string().encode()
        return item
    except (ValueError, TypeError):
        raise ValueError("TOML has no such value; expected a text, a number, true, false or a table") from None


_IsToml = AfterValidator(lambda value: value if _toml(value) is not None else None)
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Variables = Mapping[str, Annotated[str, _IsToml]]
Options = Mapping[str, Annotated[Any, _IsToml]]
Collect = tuple[str, ...] | Mapping[str, Mapping[str, Any]]


class Confound(StrictTable):
    """The cell that others are compared with, and how much slower they may be."""

    threshold: Positive | None = None
    baseline_cell: str | None = None


class InlineEnvironment(StrictTable):
    docker: str
    env: Variables = Field(default_factory=dict)


class StopAfter(StrictTable):
    """A cell ends after so many events, and with ``max_trials`` at the latest."""

    events: PositiveWhole
    max_trials: PositiveWhole
    event_verdict: Literal["fail", "pass", "error"] = "fail"


class SweepCell(StrictTable):
    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$")
    mitigations: tuple[str, ...] = Field(min_length=1)
    environment: str | InlineEnvironment
    extra_env: Variables = Field(default_factory=dict, repr=False)
    trials: PositiveWhole | None = None
    steps: PositiveWhole | None = None
    workload_config: Options = Field(default_factory=dict)
    collect: Collect | None = None


class AnySweep(StrictTable):
    schema_version: Literal[1]
    trials: PositiveWhole
    ticket: str | None = None
    confound: Confound = Confound()
    collect: Collect = ()
    stop_after: StopAfter | None = None

    def trial_keys(self) -> dict[str, Any]:
        """Keys of an action that say how many trials a cell has."""
        if (stop := self.stop_after) is None:
            return {"trials": self.trials}
        return {"trials": stop.max_trials} | ({"stop_after": stop.events} if stop.event_verdict == "fail" else {})

    def unconverted(self) -> Iterator[str]:
        if self.stop_after is not None and (event := self.stop_after.event_verdict) != "fail":
            yield f"stop_after: event_verdict: {event}: only failures end the trials of a cell"


class Sweep(AnySweep):
    workload: str
    steps: PositiveWhole
    cells: tuple[SweepCell, ...] = Field(min_length=1)
    mode: Literal["matrix"] = "matrix"
    workload_config: Options = Field(default_factory=dict)
    extra_env: Variables = Field(default_factory=dict, repr=False)
    trial_isolation: Literal["auto", "in_process", "process"] = "auto"
    save_logs: bool = False


class OutputPattern(StrictTable):
    """What is looked for in the output of a command."""

    id: str
    match: Mapping[str, Any]
    on_match: str = "fail"


class Probe(AnySweep):
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


class SanitizerPlan(BaseModel):
    """``mode: sanitizer``, or with a ``sanitizer_plan``: analyzers of GPU code, which AORTA itself runs."""

    sanitizer_plan: Mapping[str, Any]
    ticket: str | None = None


def read_sweep(file: Path) -> Sweep | Probe | SanitizerPlan:
    """A checked sweep recipe; raises ``RecipeError`` with the line, or ``RequestError`` where YAML cannot be read."""
    content, lines = read_yaml(file)
    table = content if isinstance(content, dict) else {}
    kind = SanitizerPlan if "sanitizer_plan" in table else Probe if table.get("mode") == "probe" else Sweep
    sweep: Sweep | Probe | SanitizerPlan = validated(kind, content, lines, file)
    if not isinstance(sweep, Sweep):
        return sweep
    names = [cell.name for cell in sweep.cells]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RecipeError(f"two cells have the name {name!r}", file, line_of(lines, ("cells", index, "name")))
    _check_baseline(sweep.confound.baseline_cell, names, file, line_of(lines, ("confound", "baseline_cell")))
    return sweep


def _check_baseline(wanted: str | None, cells: Sequence[str], file: Path, line: int | None = None) -> None:
    if wanted is not None and wanted not in cells:
        raise RecipeError(f"confound.baseline_cell = {wanted!r}: there are {', '.join(cells)}", file, line)


def read_as_recipe(file: Path) -> tuple[Recipe, list[str]]:
    """The recipe that a sweep recipe becomes, and notes on the parts of it that have no counterpart."""
    text, notes = converted(read_sweep(file), file)
    return parse_recipe(text, file), notes


def converted(sweep: Sweep | Probe | SanitizerPlan, file: Path, command: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The text of a recipe, and notes on the parts of the sweep in ``file`` that it leaves out.

    ``command``: the words of the command that a probe runs. Raises ``RequestError`` for a probe without a command, or
    a command with another kind of sweep.
    """
    if isinstance(sweep, Probe):
        return _of_probe(sweep, file, command)
    if command:
        raise RequestError(f"{shlex.join(command)}: only a recipe with mode: probe is about a command")
    if isinstance(sweep, SanitizerPlan):
        runs = ["aorta", "sweep", "run", "--recipe", os.path.abspath(file)]
        note = "sanitizer_plan: AORTA's own analyzers run it (pip install amd-aorta); here, that is a trial"
        table = {"name": identifier(file.stem), "command": shlex.join(runs), "trials": 1}
        return _text([(table, [])], sweep.ticket, [note]), [note]
    names = _Names(sweep)
    actions = _actions(sweep, names)
    wanted, threshold = sweep.confound.baseline_cell, sweep.confound.threshold
    named = [cell for cell in sweep.cells if cell.name == wanted or (not wanted and cell.name.startswith("baseline-"))]
    bare = [cell for cell in sweep.cells if cell.mitigations == ("none",)]
    baseline = next(iter([*named, *bare]), None)
    notes = [*sweep.unconverted()]
    keys: dict[str, Any] = {}
    if threshold is not None and 1 < threshold < 2:
        keys["speed_margin"] = round(threshold - 1, 6)
    elif threshold is not None:
        notes.append(f"confound.threshold {threshold}: speed_margin is a share above 0 and below 1")
    if sweep.trial_isolation in _ISOLATION:
        keys["isolation"] = _ISOLATION[sweep.trial_isolation]
    tables = []
    home = next((cells for _, cells in actions if baseline in cells), None)
    for own, cells in actions:
        name = identifier(file.stem) if len(actions) == 1 else cells[0].name
        table = {"name": name, "workload": sweep.workload, **own, **sweep.trial_keys()}
        if sweep.stop_after is None:
            table["cell_trials"] = {names.label(cell): cell.trials for cell in cells if cell.trials is not None}
        table = {key: value for key, value in {**table, **names.keys(), **keys}.items() if value}
        if baseline is not None and cells is home and len(cells) > 1:
            several = len(own["environments"]) > 1
            table["baseline"] = names.label(baseline) if several else names.mitigations(baseline)
        elif baseline is not None and home is not None and cells is not home:
            notes.append(
                f"the comparison of {', '.join(cell.name for cell in cells)} with {baseline.name}, of another action: "
                f"pytest-aorta compare workspace/{home[0].name} workspace/{cells[0].name}"
            )
        tables.append((table, [f"{cell.name}: {names.label(cell)}" for cell in cells]))
    return _text(tables, sweep.ticket, notes, names.defined), notes


def _text(
    actions: Sequence[tuple[Mapping[str, Any], list[str]]],
    ticket: str | None,
    notes: list[str],
    defined: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> str:
    import tomlkit

    lines = [f"# ticket: {_comment(ticket)}"] if ticket else []
    lines += [f"# not converted: {_comment(note)}" for note in notes]
    tables = [("[[action]]", table, comments) for table, comments in actions]
    tables += [(f"[{kind}]", named, []) for kind, named in defined.items() if named]
    for header, table, comments in tables:
        lines += ["", *(f"# {_comment(comment)}" for comment in comments), header]
        lines += [f"{tomlkit.key(key).as_string()} = {_toml(value).as_string()}" for key, value in table.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def _of_probe(probe: Probe, file: Path, command: Sequence[str]) -> tuple[str, list[str]]:
    if not command:
        raise RequestError(f"mode: probe is about a command: pytest-aorta convert {file} -- python train.py")
    cells = {
        f"{mitigation}-{diagnostic}": _mitigations([mitigation, diagnostic])
        for mitigation, diagnostic in itertools.product(probe.mitigation_axis, probe.diagnostic_axis)
    }
    _check_baseline(probe.confound.baseline_cell, list(cells), file)
    baseline = probe.confound.baseline_cell or ("none-none" if "none-none" in cells else next(iter(cells)))
    switched_off = {*probe.disable_detectors, *map(str, probe.disable_detector_tiers)}
    known = {} if switched_off & {"4", "tier4"} else _TIER_4
    fail_on = [each for name, patterns in known.items() if name not in switched_off for each in patterns]
    others: list[str] = []
    for pattern in probe.custom_patterns:
        regex = pattern.match.get("regex")
        (fail_on if pattern.on_match == "fail" and isinstance(regex, str) else others).append(regex or pattern.id)
    keys = {
        "name": identifier(file.stem),
        "command": shlex.join(command),
        **probe.trial_keys(),
        "mitigations": list(dict.fromkeys(cells.values())),
        "baseline": cells[baseline] if len(cells) > 1 else None,
        "timeout": probe.timeout_per_trial,
        "fail_on": list(dict.fromkeys(fail_on)),
        "collect": _collect(probe.collect),
    }
    notes = [f"{key}: {text}" for key, text in _OF_PROBES.items() if getattr(probe, key)]
    notes += [*(f"custom_patterns: {pattern}" for pattern in others), *probe.unconverted()]
    table = {key: value for key, value in keys.items() if value}
    return _text([(table, [f"{name}: {text}" for name, text in cells.items()])], probe.ticket, notes), notes


def _mitigations(names: Sequence[str]) -> str:
    """A mitigation set as a text."""
    return ",".join(dict.fromkeys(name for name in names if name != "none")) or "none"


def _collect(collect: Collect) -> list[str]:
    """The collectors with their options, as texts; raises ``RequestError`` for one that has no counterpart here."""
    from pytest_aorta.collectors.contract import load  # which starts nothing

    texts = []
    for name in collect:
        words = [_OWN_COLLECTORS.get(name, name)]
        given = collect[name] if isinstance(collect, Mapping) else {}
        for option, value in (given or {}).items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if ":" in text:
                raise RequestError(f"collect.{name}.{option}: {text!r}: a colon would begin another option")
            words.append(f"{option}={'+'.join(text.replace(',', ' ').split()) if option in _LISTS else text}")
        texts.append(":".join(words))
        if given:
            load(texts[-1:])  # refuses unknown options and values
    return texts


#: Collectors of AORTA that have another name here.
_OWN_COLLECTORS = {"layer_numerics": "numerics"}

#: Options that are lists.
_LISTS = frozenset(("trace", "pmc"))


def _actions(sweep: Sweep, names: _Names) -> list[tuple[dict[str, Any], list[SweepCell]]]:
    """The cells of each action, and its keys that they share: products of environments and mitigation sets.

    A cell that occurs again with the same environment and mitigations is for the next action.
    """
    occurrences: Counter[object] = Counter()
    rows: dict[tuple[object, ...], list[SweepCell]] = {}
    for cell in sweep.cells:
        collect = tuple(_collect(sweep.collect if cell.collect is None else cell.collect))
        row = (cell.steps or sweep.steps, collect, names.environment(cell))
        text = names.mitigations(cell)
        occurrences[row, text] += 1
        rows.setdefault((*row, occurrences[row, text]), []).append(cell)
    products: dict[tuple[Any, ...], list[list[SweepCell]]] = {}
    for (steps, chosen, _, occurrence), cells in rows.items():
        products.setdefault((steps, chosen, occurrence, tuple(map(names.mitigations, cells))), []).append(cells)
    return [
        (
            {
                "environments": [names.environment(cells[0]) for cells in same],
                "mitigations": list(mitigations),
                "steps": steps,
                "collect": list(chosen),
            },
            [cell for cells in same for cell in cells],
        )
        for (steps, chosen, _, mitigations), same in products.items()
    ]


class _Names:
    """What the cells of a sweep are called in a recipe, and the names that it defines for them.

    Variables and options that only some cells have are part of their mitigation sets: as ``NAME=VALUE`` where that
    can be written and shown, otherwise as a mitigation with the name of the cell.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._of = {
            cell.name: {**sweep.extra_env, **cell.extra_env}
            | {f"{OPTION}{name}": value for name, value in {**sweep.workload_config, **cell.workload_config}.items()}
            for cell in sweep.cells
        }
        texts = [{(name, option_text(value)) for name, value in each.items()} for each in self._of.values()]
        shared = set.intersection(*texts)
        first = next(iter(self._of.values()))
        self._shared = {name: value for name, value in first.items() if (name, option_text(value)) in shared}
        self.defined: dict[str, dict[str, Any]] = {"mitigation": {}, "environment": {}}

    def keys(self) -> dict[str, Any]:
        """Options and variables of all cells."""
        options = {name: value for name, value in self._shared.items() if name.startswith(OPTION)}
        variables = {name: value for name, value in self._shared.items() if name not in options}
        return {"config": {k.removeprefix(OPTION): value for k, value in options.items()}, "extra_env": variables}

    def environment(self, cell: SweepCell) -> str:
        inline = cell.environment
        if isinstance(inline, str):
            if inline in _EMULATED:
                self.defined["environment"][inline] = {"launcher": f"mirage run --profile {_EMULATED[inline]} --"}
            return "local" if inline == "default" else inline
        named, table = self.defined["environment"], inline.model_dump(exclude_defaults=True)
        image = re.sub(r"[^A-Za-z0-9_.]+", "_", inline.docker.rpartition("/")[2]).strip("_") or "image"
        names = itertools.chain([image], (f"{image}_{number}" for number in itertools.count(2)))
        return next(name for name in names if named.setdefault(name, table) == table)

    def mitigations(self, cell: SweepCell) -> str:
        own = {name: value for name, value in self._of[cell.name].items() if name not in self._shared}
        texts = {name: option_text(value) if name.startswith(OPTION) else value for name, value in own.items()}
        pairs = [f"{name}={text}" for name, text in texts.items()]
        if any("," in text or is_secret_name(name) for name, text in texts.items()) or None in map(
            variable_from, pairs
        ):
            taken = cell.name in {each.name for each in BUILTIN_MITIGATIONS}
            pairs = [f"{cell.name}_cell" if taken else cell.name]
            self.defined["mitigation"][pairs[0]] = own
        return _mitigations([*cell.mitigations, *pairs])

    def label(self, cell: SweepCell) -> str:
        return f"{identifier(self.environment(cell))}-{'+'.join(map(identifier, self.mitigations(cell).split(',')))}"


def _comment(text: str | None) -> str:
    return " ".join(json.dumps(text or "", ensure_ascii=True)[1:-1].split())
