"""A recipe: its tables, how a file is read, and whether its actions fit together.

Each key of an action may be left out: it is taken from the action that ``from`` names, then from the defaults.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    model_validator,
)

from pytest_aorta.common.conditions import Json, Operator, check_pointer, element, is_met
from pytest_aorta.common.texts import identifier
from pytest_aorta.registry import Environment, Mitigation, Registry, RegistryError, environment_from, mitigation_from
from pytest_aorta.settings import TRIALS_UNTIL_DECIDED, Reader, seconds, share, shown_command, variations
from pytest_aorta.triage import margin
from pytest_aorta.trials.command_line import command_words, label_of
from pytest_aorta.trials.output import checked_metric, checked_regex
from pytest_aorta.trials.readers import checked_source
from pytest_aorta.workflow.finding import RecipeError
from pytest_aorta.workflow.tables import (
    Location,
    OneOf,
    StrictTable,
    completed,
    key_lines,
    line_of,
    read_toml,
    validated,
)

if sys.version_info >= (3, 11):
    pass
else:
    pass  # pytest needs it there

# The tables

_HOUR = timedelta(hours=1)


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):  # which pydantic takes for a second
        raise ValueError('expected a duration such as "02:30:00"')
    return value


def _read_by(reader: Reader, *, keep: bool = False) -> BeforeValidator:
    """A value as an option takes it; ``keep``: it is only checked here."""

    def read(value: object) -> object:
        try:
            parsed = reader(value)
        except ValueError as error:
            raise ValueError(f"expected {error}") from None
        return value if keep else parsed

    return BeforeValidator(read)


def _several(content: object) -> object:
    return (content,) if isinstance(content, str) else content


# Strict: otherwise, pydantic takes ``true`` for 1, and a string for the number that it spells.
WholeNumber = Annotated[int, Field(strict=True)]
PositiveWhole = Annotated[int, Field(strict=True, gt=0)]
NonNegativeWhole = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[float, Field(strict=True)]
Seconds = Annotated[float, _read_by(seconds)]
Duration = Annotated[timedelta, BeforeValidator(_no_boolean)]
Share = Annotated[float, _read_by(share)]
MarginText = Annotated[float | str, _read_by(margin, keep=True)]
#: An array, or only one of its elements.
Texts = Annotated[tuple[str, ...], BeforeValidator(_several)]
Regexes = Annotated[tuple[Annotated[str, _read_by(checked_regex)], ...], BeforeValidator(_several)]
Pointer = Annotated[str, AfterValidator(check_pointer)]

#: A JSON pointer, an operator, and what the element is compared with.
Condition = tuple[Pointer, Operator, Any]


#: By ``each``: names of the folder of its unit. ``{directory}``, from Row, is relative to the workspace, all others are
#: paths from where the command runs.
_ONE = {
    "directory": ("directory", "folder"),
    "trial": ("folder",),
    "cell": ("folder", "cell"),
    "matrix": ("folder", "results"),
}

#: All units of a group, in one command.
_ALL = ("directories", "folders")

#: By placeholder: the values of ``each`` that allow it; others are always allowed.
_ONLY_FOR = {
    "directory": ("directory",),
    "directories": ("directory",),
    "cell": ("trial", "cell"),
    "results": ("trial", "cell", "matrix"),
}

#: Folders, ``{workspace_path}`` and JSON pointers; other braces are the shell's.
_PLACEHOLDER = re.compile(rf"\{{({'|'.join(_ALL)}|directory|folder|cell|results|workspace_path|/[^{{}}]*)\}}")


def check_command(command: str, each: str = "directory") -> None:
    placeholders = _PLACEHOLDER.findall(command)
    one, all_of_them = _ONE[each][0], _ALL[each != "directory"]
    for wrong, kinds in _ONLY_FOR.items():
        if wrong in placeholders and each not in kinds:
            raise ValueError(
                f"the command {command!r} has {{{wrong}}}, which is for each = {' or '.join(map(repr, kinds))}; for "
                f"each = {each!r}, {{{one}}}"
            )
    has_one, has_all = (not {*names}.isdisjoint(placeholders) for names in (_ONE[each], _ALL))
    if has_one == has_all:
        both = "both" if has_one else "neither"
        hint = "" if has_one else ", or trials = N to be run for its own sake"
        raise ValueError(
            f"the command {command!r} has {both} of {{{one}}} and {{{all_of_them}}}; it needs one of them{hint}"
        )
    for pointer in placeholders:
        if pointer.startswith("/"):
            if has_all:
                raise ValueError(f"{{{pointer}}} is an element of one {each}; it cannot be used with {{{all_of_them}}}")
            check_pointer(pointer)


def works_on_directories(command: str) -> bool:
    """Whether a command has a placeholder that commands of trials cannot have."""
    return any(name not in ("folder", "cell", "results") for name in _PLACEHOLDER.findall(command))


_TRIAL_FOLDER = re.compile(r"trial_\d+")


def takes_all(command: str) -> bool:
    return any(f"{{{name}}}" in command for name in _ALL)


def shell_commands(command: str, directories: Sequence[str], values: Sequence[Json], workspace: Path) -> list[str]:
    """The lines for a shell: one per directory, or one for all; raises ``RequestError`` where a value lacks one."""
    lines = []
    runs = [("", None)] if takes_all(command) else zip(directories, values, strict=True)
    all_of_them = {"directories": shlex.join(directories)}
    all_of_them["folders"] = shlex.join(str(workspace / name) for name in directories)
    for name, value in runs:
        words = {**all_of_them, "directory": shlex.quote(name), "workspace_path": shlex.quote(str(workspace))}
        path = Path(name)  # RESULTS/WORKLOAD/CELL/trial_N, without the cell where there is only one
        cell = path.parent if _TRIAL_FOLDER.fullmatch(path.name) else path
        folders = {"folder": path, "cell": cell, "results": Path(*path.parts[:1])}
        words |= {key: shlex.quote(str(workspace / each)) for key, each in folders.items()}
        for pointer in [each for each in _PLACEHOLDER.findall(command) if each.startswith("/")]:
            part = element(value, pointer, name)
            words[pointer] = shlex.quote(part if isinstance(part, str) else json.dumps(part))
        lines.append(_PLACEHOLDER.sub(lambda match: words[match[1]], command))  # noqa: B023  (called at once)
    return lines


class Selector(OneOf):
    condition: Condition | None = None
    all: tuple[Condition, ...] | None = None
    any: tuple[Condition, ...] | None = None

    def selects(self, value: Json, directory: str) -> bool:
        if self.any is not None:
            return builtins.any(is_met(value, *condition, directory) for condition in self.any)
        conditions = self.all if self.condition is None else (self.condition,)
        return builtins.all(is_met(value, *condition, directory) for condition in conditions or ())


class Group(StrictTable):
    """How the directories of an action are selected, sorted and split, see ``workflow.groups``."""

    include: tuple[Selector, ...] = ()
    sort_by: tuple[Pointer, ...] = ()
    reverse_sort: bool = False
    split_by_sort_key: bool = False
    maximum_size: PositiveWhole | None = None
    submit_whole: bool = False


class Processes(OneOf):
    """Number of processes, of a job or of each of its directories."""

    per_submission: PositiveWhole | None = None
    per_directory: PositiveWhole | None = None


class Walltime(OneOf):
    per_submission: Duration | None = None
    per_directory: Duration | None = None


class JobMemory(OneOf):
    """Memory in MB, for each core or for each GPU."""

    per_cpu_mb: PositiveWhole | None = None
    per_gpu_mb: PositiveWhole | None = None


@dataclass(frozen=True)
class Cost:
    """Core hours and GPU hours; a job that asks for GPUs is counted in GPU hours only, as in Row."""

    cpu_hours: float = 0.0
    gpu_hours: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_hours + other.cpu_hours, self.gpu_hours + other.gpu_hours)

    def __mul__(self, count: int) -> Cost:
        return Cost(self.cpu_hours * count, self.gpu_hours * count)

    def __str__(self) -> str:
        parts = [(self.cpu_hours, "CPU-hours"), (self.gpu_hours, "GPU-hours")]
        shown = [(f"{n:,.0f}" if n >= 10 or n == round(n) else f"{n:.2g}", unit) for n, unit in parts if n]
        return " and ".join(f"{hours} {unit}" for hours, unit in shown) or "0 CPU-hours"


class JobResources(StrictTable):
    """What a job over so many directories asks for; keys that are left out have Row's defaults."""

    processes: Processes | None = None
    threads_per_process: PositiveWhole | None = None
    gpus_per_process: PositiveWhole | None = None
    memory: JobMemory | None = None
    walltime: Walltime | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, content: Any) -> Any:
        """Row's keys ``memory_per_cpu_mb`` and ``memory_per_gpu_mb`` set the keys of ``memory``."""
        if not isinstance(content, Mapping):
            return content
        flat = {key: content[f"memory_{key}"] for key in JobMemory.model_fields if f"memory_{key}" in content}
        others = {key: value for key, value in content.items() if key.removeprefix("memory_") not in flat}
        return {**others, "memory": {**flat, **content.get("memory", {})}} if flat else content

    def with_memory(self, factor: float) -> JobResources:
        if self.memory is None or factor == 1:
            return self
        more = {name: math.ceil(value * factor) for name, value in self.memory if value is not None}
        return self.model_copy(update={"memory": JobMemory(**more)})

    def total_processes(self, directories: int) -> int:
        if self.processes is None:
            return 1
        return self.processes.per_submission or (self.processes.per_directory or 0) * directories

    def total_cpus(self, directories: int) -> int:
        return self.total_processes(directories) * (self.threads_per_process or 1)

    def total_gpus(self, directories: int) -> int:
        return self.total_processes(directories) * (self.gpus_per_process or 0)

    def total_walltime(self, directories: int) -> timedelta:
        if self.walltime is None:
            return _HOUR * directories
        return self.walltime.per_submission or (self.walltime.per_directory or _HOUR) * directories

    def cost(self, directories: int, measured: timedelta | None = None) -> Cost:
        """The highest cost of a job over this many directories; ``measured``: known time of one directory."""
        time = self.total_walltime(directories)
        if measured is not None:
            time = min(time, measured * directories)
        hours = self.total_processes(directories) * (time / _HOUR)
        if self.gpus_per_process is not None:
            return Cost(gpu_hours=hours * self.gpus_per_process)
        return Cost(cpu_hours=hours * (self.threads_per_process or 1))


class WorkspaceTable(StrictTable):
    path: Path = Path("workspace")
    value_file: Path | None = None


class SubmitOptions(StrictTable):
    """What jobs on one cluster need besides resources."""

    account: str | None = None
    setup: str | None = None
    custom: tuple[str, ...] = ()
    partition: str | None = None
    output_file_path: str | None = None
    output_file_name: str | None = None


#: The period after which all trials of an action run again.
Every = Literal["day", "week", "month"]


def present(every: Every, now: datetime | None = None) -> datetime:
    """When the day, the week or the month has begun that it is now, in UTC; weeks begin on Monday."""
    now = now or datetime.now(timezone.utc)
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    back = {"day": 0, "week": day.weekday(), "month": day.day - 1}[every]
    return day - timedelta(days=back)


def _factor(value: Any) -> Any:
    """``"x1.5"`` as a number."""
    return float(value[1:]) if isinstance(value, str) and re.fullmatch(r"x\d+(\.\d+)?", value) else value


class Resubmission(StrictTable):
    """How often ``--watch`` submits lost units again; ``memory``: factor on the memory of the job before."""

    times: WholeNumber = 1
    memory: Annotated[float, Field(gt=1), BeforeValidator(_factor)] | None = None


class Retry(StrictTable):
    """Resubmissions by cause: lost node or preemption, too little memory, time limit."""

    infrastructure: WholeNumber | Resubmission = 2
    oom: WholeNumber | Resubmission = 0
    timeout: WholeNumber | Resubmission = 0

    def again(self, reason: str) -> Resubmission:
        rule = getattr(self, reason)
        return rule if isinstance(rule, Resubmission) else Resubmission(times=rule)


class Distributed(StrictTable):
    nproc: PositiveWhole | None = None
    launcher: Literal["auto", "elastic", "torchrun", "external"] = "auto"
    elastic: Mapping[str, str | WholeNumber | Number] = Field(default_factory=dict)


class CommandTable(StrictTable):
    command: str | None = None
    products: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()
    each: Literal["directory", "trial", "cell", "matrix", "node"] = "directory"


class OutputTable(StrictTable):
    """What is looked for in what the trials of a command print."""

    fail_on: Regexes = ()
    pass_on: Regexes = ()
    skip_on: Regexes = ()
    metric: Annotated[tuple[Annotated[str, _read_by(checked_metric)], ...], BeforeValidator(_several)] = ()
    metrics_from: Annotated[tuple[Annotated[str, _read_by(checked_source)], ...], BeforeValidator(_several)] = ()
    fail_on_nonfinite: bool = False
    allow_nonfinite: Texts = ()
    depends: Texts = ()


#: A variable: one mitigation set per value.
Axis = Annotated[tuple[tuple[str, ...], ...], _read_by(variations)]


class MatrixTable(StrictTable):
    workload: str | None = None
    trials: PositiveWhole = 1
    cell_trials: Mapping[str, PositiveWhole] = Field(default_factory=dict)
    environments: Texts = ("local",)
    mitigations: Annotated[tuple[str | tuple[str, ...], ...], BeforeValidator(_several)] = ("none",)
    axes: Mapping[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(default_factory=dict)
    vary: Annotated[tuple[Axis, ...], BeforeValidator(_several)] = ()
    config: Mapping[str, Any] = Field(default_factory=dict)
    extra_env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    steps: PositiveWhole | None = None
    timeout: Seconds | None = None
    stall_timeout: Seconds | None = None
    seed: WholeNumber | None = None
    isolation: Literal["auto", "fork", "spawn", "none"] = "auto"
    cwd: Literal["here", "fresh", "copy"] | None = None
    collect: Texts = ()
    distributed: Distributed = Distributed()
    expect: Literal["pass", "fail"] = "pass"
    baseline: str | None = None
    margin: MarginText | None = None
    speed_margin: Share | None = None
    until_decided: bool = False
    stop_after: PositiveWhole | None = None
    gate: Texts = ()
    nodes: Texts = ()
    every: Every | None = None


class ActionTable(CommandTable, MatrixTable, OutputTable):
    """An action as it is written: a matrix of trials, of a workload or a command; or one command per directory."""

    name: str | None = None
    from_: str | None = Field(default=None, alias="from")
    previous_actions: tuple[str, ...] = ()
    resources: JobResources = JobResources()
    group: Group = Group()
    submit_options: Mapping[str, SubmitOptions] = Field(default_factory=dict)
    retry: Retry = Retry()

    @property
    def is_matrix(self) -> bool:
        """Whether it has a workload, or a command and keys that only trials have."""
        return self.workload is not None or self.each == "node" or not _OF_TRIALS.isdisjoint(self.model_fields_set)

    def trials_in(self, cell: str) -> int:
        return self.cell_trials.get(cell, self.trials)

    @property
    def ends_early(self) -> bool:
        """Whether the trials of a cell may end before ``trials``: with its verdict, or after so many failures."""
        return self.until_decided or self.stop_after is not None

    @classmethod
    def useless_keys(cls, content: Any) -> set[str]:
        if isinstance(content, Mapping) and "workload" in content and "command" not in content:
            useless = {*CommandTable.model_fields, *OutputTable.model_fields}
            return useless - {"each"} if content.get("each") == "node" else useless
        return set()


_OF_TRIALS = {*MatrixTable.model_fields, *OutputTable.model_fields}


class DefaultTable(StrictTable):
    action: ActionTable = ActionTable()


class RecipeTable(StrictTable):
    workspace: WorkspaceTable = WorkspaceTable()
    default: DefaultTable = DefaultTable()
    action: tuple[ActionTable, ...] = ()
    signatures: Mapping[str, Regexes] = Field(default_factory=dict)
    mitigation: Mapping[str, Any] = Field(default_factory=dict, repr=False)
    environment: Mapping[str, Any] = Field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Action:
    """An action with all of its keys; ``line``: of its header in the recipe. Several actions may share a name.

    ``signatures``: the recipe's names of ways to fail, each with a regular expression. ``nodes``: of a sweep over
    nodes, those that it was submitted to: equally many trials of each cell are for each of them, by their index.
    """

    name: str
    table: ActionTable
    line: int
    signatures: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] | None = None

    def node_of(self, unit: str) -> str | None:
        """The node of a trial, ``CELL/INDEX``, of a sweep."""
        if not self.nodes:
            return None
        return self.nodes[int(unit.rpartition("/")[2]) * len(self.nodes) // self.table.trials]

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix of trials, and not a command on directories."""
        return self.table.is_matrix

    @property
    def least_nodes(self) -> int:
        """Minimum nodes per trial."""
        return int(str(self.table.distributed.elastic.get("nnodes", 1)).partition(":")[0])


@dataclass(frozen=True)
class Recipe:
    """A checked recipe, with its actions in the order of the file, and names of its own."""

    file: Path
    workspace: WorkspaceTable
    actions: tuple[Action, ...]
    names: tuple[Mitigation | Environment, ...] = ()

    @property
    def root(self) -> Path:
        """The folder that commands run in."""
        return self.file.parent

    @property
    def directories(self) -> Path:
        """The workspace: directories that commands work on, and results of trials."""
        return self.root / self.workspace.path

    def names_in(self, registry: Registry) -> Registry:
        return registry.adding(self.names, f"the recipe {self.file}") if self.names else registry

    @property
    def index(self) -> Path:
        """The folder of the workspace's index, beside the recipe."""
        return self.root / ".aorta"

    @cached_property
    def by_name(self) -> Mapping[str, tuple[Action, ...]]:
        by_name: dict[str, tuple[Action, ...]] = {}
        for action in self.actions:
            by_name[action.name] = (*by_name.get(action.name, ()), action)
        return by_name

    def in_order(self) -> list[Action]:
        """Actions after their previous ones, otherwise in the order of the file."""
        done: dict[str, None] = {}
        left = list(self.by_name)
        while left:
            name = next(name for name in left if done.keys() >= set(self.by_name[name][0].table.previous_actions))
            left.remove(name)
            done[name] = None
        return [action for name in done for action in self.by_name[name]]

    def matrix_before(self, action: Action) -> Action | None:
        """The nearest previous action with a workload; this action works on its trials or cells."""
        names = [*action.table.previous_actions]
        for name in names:
            before = self.by_name[name][0]
            if before.is_matrix:
                return before
            names += [each for each in before.table.previous_actions if each not in names]
        return None

    def error(self, action: Action, message: str) -> RecipeError:
        return RecipeError(message, self.file, action.line)


def read_recipe(file: Path) -> Recipe:
    """A recipe file, checked; raises ``RecipeError``."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read: {error}", file) from error
    return parse_recipe(text, file)


def parse_recipe(text: str, file: Path) -> Recipe:
    """The text of a recipe file, checked, see ``read_recipe``."""
    content, lines = read_toml(text, file), key_lines(text)
    content, lines = _with_action_at_the_top(content, lines, file)
    table: RecipeTable = validated(RecipeTable, content, lines, file)
    rules = tuple((name, each) for name, expressions in table.signatures.items() for each in expressions)
    if table.default.action.from_ is not None:
        raise RecipeError("default.action cannot have from", file, line_of(lines, ("default", "action", "from")))
    actions = []
    for index, own in enumerate(table.action):

        def error(message: str, *key: str, index: int = index) -> RecipeError:
            return RecipeError(message, file, line_of(lines, ("action", index, *key)))

        if own.from_ is not None:
            template = next((other for other in table.action if other.name == own.from_), None)
            if template is None:
                known = ", ".join(str(other.name) for other in table.action)
                raise error(f"from = {own.from_!r} names no action; there are {known}", "from")
            if template.from_ is not None:
                message = f"names an action that has from itself ({template.from_!r}); name that one"
                raise error(f"from = {own.from_!r} {message}", "from")
            own = completed(own, template)
        own = completed(own, table.default.action)
        name = own.name
        if name is None:
            raise error("an action has no name")
        if (own.command is None) == (own.workload is None):
            have = "neither" if own.command is None else "both"
            raise error(f"action {own.name!r} has {have} of command and workload; it needs one of them")
        nodes: tuple[str, ...] | None = None
        if own.each == "node":
            for key in ("until_decided", "stop_after", "cell_trials", "distributed"):
                if key in own.model_fields_set:
                    raise error(f"action {name!r} has each = 'node', for which {key} cannot act", key)
            nodes = ()
            with contextlib.suppress(OSError):
                nodes = tuple(nodes_file(file, name).read_text(encoding="utf-8").split())
            own = own.model_copy(update={"trials": own.trials * max(1, len(nodes)), "each": "directory"})
        elif own.nodes:
            raise error(f"action {own.name!r} has nodes; it needs each = 'node'", "nodes")
        useless = sorted(own.model_fields_set & _USELESS[own.command is not None, own.is_matrix])
        if useless and (nodes is None or useless != ["each"]):
            keys = [name for name in ActionTable.model_fields if name in own.model_fields_set & _OF_TRIALS]
            kind = "a workload" if own.workload else f"trials of a command ({', '.join(keys)})"
            raise error(f"action {own.name!r} has {kind}, for which {', '.join(useless)} cannot act", useless[0])
        if own.command is not None:
            try:
                _check_trial_command(own.command) if own.is_matrix else check_command(own.command, own.each)
            except ValueError as problem:
                raise error(f"action {own.name!r}: {problem}", "command") from None
        if own.ends_early and "trials" not in own.model_fields_set:
            own = own.model_copy(update={"trials": TRIALS_UNTIL_DECIDED})
        actions.append(Action(name, own, line_of(lines, ("action", index)), rules, nodes))
    recipe = Recipe(file.absolute(), table.workspace, tuple(actions), tuple(_names(table, lines, file)))
    _check_actions(recipe)
    return recipe


def _names(table: RecipeTable, lines: Mapping[Location, int], file: Path) -> Iterator[Mitigation | Environment]:
    for kind, named in (("mitigation", table.mitigation), ("environment", table.environment)):
        for name, payload in named.items():
            where = f"{kind}.{name}"
            try:
                if kind == "mitigation":
                    yield mitigation_from(payload, name=name, source_package="recipe", where=where)
                else:
                    base = file.absolute().parent
                    yield environment_from(payload, name=name, source_package="recipe", where=where, base=base)
            except RegistryError as error:
                raise RecipeError(str(error), file, line_of(lines, (kind, name))) from None


#: Keys that cannot act, by whether there is a command, and whether it has trials.
_USELESS: Mapping[tuple[bool, bool], set[str]] = {
    (True, True): {"products", "launchers", "each", "steps"},
    (True, False): set(),
    (False, True): {*CommandTable.model_fields, *OutputTable.model_fields},
}


def nodes_file(recipe: Path, action: str) -> Path:
    """The file with the nodes of a sweep, one per line, in the order of discovery."""
    return recipe.parent / ".aorta" / f"nodes-{identifier(action)}.txt"


def _check_trial_command(command: str) -> None:
    if works_on_directories(command):
        raise ValueError(f"the command {command!r} works on directories, which have no trials")
    try:
        command_words(command)
    except ValueError as error:
        raise ValueError(f"the command {shown_command(command)} is not valid; expected {error}") from None


def _with_action_at_the_top(
    content: dict[str, Any], lines: Mapping[Location, int], file: Path
) -> tuple[dict[str, Any], Mapping[Location, int]]:
    """Read a file that is one action without a header; all other keys belong to the file."""
    own = {key: value for key, value in content.items() if key not in RecipeTable.model_fields}
    known = [key for key in own if key in ActionTable.model_fields]
    if not known:
        return content, lines
    if "action" in content:
        message = f"{known[0]!r} is a key of an action: below [[action]], or below [default.action] for all of them"
        raise RecipeError(message, file, line_of(lines, (known[0],)))
    name, command = own.get("workload"), own.get("command")
    if isinstance(command, str) and not works_on_directories(command):
        if _OF_TRIALS.isdisjoint(own):
            own["trials"] = 1  # which makes trials of it
        with contextlib.suppress(ValueError):
            name = label_of(command_words(command))
    own.setdefault("name", name if isinstance(name, str) else "trials")
    at_top = {("action", 0, *key): line for key, line in lines.items() if key and key[0] in own}
    others = {key: value for key, value in content.items() if key not in own}
    return {**others, "action": [own]}, {**lines, **at_top}


def _check_actions(recipe: Recipe) -> None:
    for action in recipe.actions:
        for name in action.table.previous_actions:
            if name not in recipe.by_name:
                known = ", ".join(recipe.by_name)
                message = f"previous action {name!r} of {action.name!r} does not exist; there are {known}"
                raise recipe.error(action, message)
        first = recipe.by_name[action.name][0]
        for key in ("previous_actions", "products", "each"):
            if getattr(action.table, key) != getattr(first.table, key):
                message = f"differs from that of the action of the same name in line {first.line}"
                raise recipe.error(action, f"{key} of {action.name!r} {message}")
        if action is not first and (action.is_matrix or first.is_matrix):
            message = f"is the name of an action with a workload (line {first.line}), which cannot be shared"
            raise recipe.error(action, f"{action.name!r} {message}")
    graph = {name: set(same[0].table.previous_actions) for name, same in recipe.by_name.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        message = f"actions wait for each other: {' -> '.join(circle)}"
        raise recipe.error(recipe.by_name[circle[-1]][0], message) from None
