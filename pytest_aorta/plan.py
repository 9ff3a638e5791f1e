"""Selection and registry to plan: the frozen, ordered list of trials of a pytest run."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_aorta.launch.launch_mode import AS_TYPED, COMMAND_RANKS_TARGET
from pytest_aorta.probe.variables import has_secret, is_secret_name
from pytest_aorta.registry import BUILTIN_SOURCE, Environment, Mitigation, Registry, WorkloadEntry, option_value
from pytest_aorta.search import AmplifyRequest, BisectRequest
from pytest_aorta.settings import (
    BY_NAME,
    MOST_OF_AUTO,
    PAIRS,
    TRIALS_UNTIL_DECIDED,
    OptionError,
    RequestError,
    is_variable,
)
from pytest_aorta.triage import Stop, TriageSettings
from pytest_aorta.trials.command_line import COMMAND_TARGET, command_words, distinct_names
from pytest_aorta.trials.execution import (
    LAUNCHER_OWNED,
    Execution,
    Limits,
    Resources,
    automatic_slots,
    elastic_options,
)
from pytest_aorta.trials.output import OUTPUT_OPTIONS, OutputRules
from pytest_aorta.trials.records import canonical_json
from pytest_aorta.trials.spec import Origin, TrialSpec
from pytest_aorta.trials.workload import to_plain
from pytest_aorta.workspace.paths import TrialPaths, trial_paths
from pytest_aorta.workspace.trial_store import KEPT_RECORDS

if TYPE_CHECKING:
    from pytest_aorta.common.conditions import Json, TypedCondition
    from pytest_aorta.search.explain import ExplainRequest
    from pytest_aorta.triage.gates import Gate


class PlanError(RequestError): ...


def completed(
    entry: WorkloadEntry,
    rules: OutputRules,
    execution: Execution,
    depends: Sequence[str] = (),
    observe: str | None = None,
) -> WorkloadEntry:
    """The entry of a command with what is looked for in its output, and with ranks where they are asked for.

    ``depends``: files and folders that its result depends on; ``observe``: how it is watched. Raises ``PlanError`` for
    what its ranks cannot have.
    """
    if entry.target != COMMAND_TARGET:
        return entry
    name, target = entry.name, COMMAND_TARGET
    if execution.nproc is not None:
        target = COMMAND_RANKS_TARGET
        if execution.isolation == "none":
            raise PlanError(f"the ranks of {name} are processes of their own; use --aorta-isolation fork or spawn")
        if execution.launcher not in ("auto", "torchrun"):
            raise PlanError(
                f"the ranks of {name} are started by torchrun; --aorta-launcher {execution.launcher} cannot"
            )
        refused = [option for option in execution.elastic.given() if option != "max_restarts"]
        if refused:
            raise PlanError(f"--aorta-elastic {refused[0]}: the ranks of {name}, a command, take max_restarts only")
    more: dict[str, Any] = {"depends": list(depends)} if depends else {}
    if observe is not None or execution.launcher == AS_TYPED:
        more["observe"] = observe or "none"
    return replace(entry, target=target, options={**entry.options, **rules.options(), **more})


Order = Literal["interleaved", "grouped", "random"]

#: Cells whose zygotes are kept warm at once; beyond, blocks of cells are interleaved.
WARM_CELLS = 8


#: Trials of a plan whose end is a time (more would take long to collect), and the least of each cell.
_TRIALS_IN_TIME, _ROUNDS_IN_TIME = 10_000, 100


#: Settings that have a search decide which trials run, as the commands are called.
SEARCHES = ("minimize", "bisect", "amplify", "explain")


@dataclass(frozen=True)
class Selection:
    """What the user asked for, in names and texts; the defaults are those of the options.

    ``cell_trials``: of cells, by their labels, that have another number of ``trials``.
    ``commands`` are workloads as well, and ``output`` says what to look for in what these print; ``depends`` are files
    and folders that their results depend on; ``observe`` is how they are watched; ``folder`` is their working
    directory, where it is not that of pytest. ``extra_env`` maps variables to values; ``config`` options of the
    workload to texts or values; ``mitigations`` is a tuple of mitigation sets; ``since`` is when trials must have begun
    to be kept; ``replays`` are trial files, and folders of them, to take all else from.
    """

    workloads: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    output: OutputRules = field(default_factory=OutputRules)
    depends: tuple[str, ...] = ()
    observe: str | None = None
    folder: str | None = None
    trials: int = 1
    cell_trials: Mapping[str, int] = field(default_factory=dict)
    environments: tuple[str, ...] = ("local",)
    mitigations: tuple[tuple[str, ...], ...] = (("none",),)
    extra_env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may be secrets
    steps: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    collect: tuple[str, ...] = ()
    collect_on_failure: bool = False
    results_dir: Path = Path("results")
    resume: bool = False
    since: str = ""
    history: int = KEPT_RECORDS
    order: Order = "interleaved"
    shard: tuple[int, int] | None = None
    where: tuple[TypedCondition, ...] = ()
    registry_files: tuple[Path, ...] = ()
    execution: Execution = field(default_factory=Execution)
    limits: Limits = field(default_factory=Limits)
    resources: Resources = field(default_factory=Resources)
    replays: tuple[Path, ...] = ()
    triage: TriageSettings = field(default_factory=TriageSettings)
    report: Path | None = None
    stop: Stop = field(default_factory=Stop)
    gates: tuple[Gate, ...] = ()
    minimize: tuple[str, ...] = ()
    bisect: BisectRequest | None = None
    amplify: AmplifyRequest | None = None
    explain: ExplainRequest | None = None
    build: str = ""
    max_trials: int = 2000

    @property
    def searches(self) -> bool:
        """Whether a search decides which trials run."""
        return bool(self.minimize) or self.has_own_table

    @property
    def has_own_table(self) -> bool:
        """Whether a search says in a table of its own what its cells have shown."""
        return any(each is not None for each in (self.bisect, self.amplify, self.explain))

    @property
    def may_end_early(self) -> bool:
        return self.stop.ends_cells or self.stop.seconds is not None

    @property
    def collect_first(self) -> tuple[str, ...]:
        """The collectors that first runs have, not only replays of those that fail."""
        return () if self.collect_on_failure else self.collect

    @property
    def turns(self) -> int | None:
        """After how many trials of each of its cells a block of cells gives way to the next, see ``ordered``.

        One by one where the time may be over at any moment. Until cells are decided, the last ones must not wait for
        the end of the first, whose baseline is theirs; but a cell that is not kept warm costs an import.
        """
        if self.stop.seconds is not None:
            return 1
        return WARM_CELLS if self.stop.ends_cells else None


def select(values: Mapping[str, Any], here: Path, base: Path, *, worker: int = 0, workers: int = 1) -> Selection:
    """The selection that settings make, by their names; a setting without a value is ``None``, or not there.

    Relative paths are in ``here``; those of files that are not there, in ``base``, the folder of the ini file.

    Raises:
        OptionError: settings that exclude each other, a host or a path that cannot be.
    """
    values = dict.fromkeys(BY_NAME) | dict(values)
    stop = values["stop"] or Stop()
    _check_search(values)
    _check_collectors(values)
    for axis in values["vary"] or ():
        values["mitigations"] = with_axis(values["mitigations"] or (("none",),), axis)
    if stop.seconds is not None and (values["order"] or "interleaved") != "interleaved":
        raise OptionError(f"aorta_order {values['order']} and --aorta-stop with a time: whole rounds are interleaved")
    trials = values["trials"]
    if trials == "auto":
        if any(values[name] for name in SEARCHES):
            raise OptionError("--aorta-trials auto and a search: use a number; a search ends by itself")
        stop, trials = replace(stop, decided=True, power=True), MOST_OF_AUTO
    if trials is None and stop.seconds is not None:
        workloads = (*(values["workload"] or ()), *(values["command"] or ()))
        cells = math.prod(len(axis or ("",)) for axis in (workloads, values["environment"], values["mitigations"]))
        trials = max(_ROUNDS_IN_TIME, _TRIALS_IN_TIME // cells)
    elif trials is None and (stop.ends_cells or values["minimize"] or values["explain"]):
        trials = TRIALS_UNTIL_DECIDED
    if values["graph"]:
        values["workload"] = (*(values["workload"] or ()), "graph")
        values["config"] = (*dict(values["config"] or ()).items(), ("graph", values["graph"]))
    slots, own_cores = values["slots"] or (None, None)
    if slots == 0:
        slots = automatic_slots(values["devices"])

    def given(*names: str, **others: Any) -> dict[str, Any]:
        """Arguments for those fields that have a value, of settings of the same ``names`` and of ``others``."""
        found = {name: values[name.replace("_", "-")] for name in names} | others
        return {field: value for field, value in found.items() if value is not None}

    return Selection(
        **given(
            "mitigations",
            "steps",
            "resume",
            "since",
            "history",
            "order",
            "where",
            "minimize",
            "bisect",
            "amplify",
            "explain",
            "build",
            "max_trials",
        ),
        **given("collect", "collect_on_failure"),
        **given(workloads=values["workload"], environments=values["environment"], commands=values["command"]),
        **given("depends", "observe", trials=trials, gates=values["gate"]),
        **given(results_dir=values["results-dir"] and Path(values["results-dir"])),
        **given(report=values["report"] and Path(values["report"])),
        output=OutputRules(**given(*OUTPUT_OPTIONS)),
        extra_env={name: value for pairs in values["extra-env"] or () for name, value in pairs.items()},
        config=dict(values["config"] or ()),
        replays=tuple(here / text for text in values["replay"] or ()),
        registry_files=tuple(_path(text, base) for text in values["registry-file"] or ()),
        execution=Execution(
            **given("isolation", "launcher", "nproc", "seed", "preload", "cwd", "zygotes"),
            elastic=elastic_options(dict(values["elastic"] or ())),
        ),
        limits=Limits(
            **given("timeout", "stall_timeout", "grace", "memory", "log_limit", "fail_on_nonfinite", "allow_nonfinite")
        ),
        resources=Resources(
            **given("devices", "health", slots=slots, own_cores=own_cores),
            hosts=hosts_of(values["host"] or (), "--aorta-host"),
            workers=workers,
            worker=worker,
        ),
        triage=TriageSettings(
            **given("baseline", "margin", "speed_margin"),
            sequential=bool(stop.ends_cells or stop.seconds or any(values[name] for name in SEARCHES)),
            confirm=stop.decided and stop.confirm,
            speed=stop.speed,
            screens=stop.decided and not stop.equivalence,
            power=stop.power,
        ),
        stop=stop,
        shard=values["shard"],
    )


def _check_collectors(values: Mapping[str, Any]) -> None:
    if not values["collect-on-failure"]:
        return
    if not values["collect"]:
        raise OptionError("--aorta-collect-on-failure: expected --aorta-collect with the names of collectors beside it")
    if any(text.partition(":")[0] == "divergence" for text in values["collect"]):
        raise OptionError(
            "--aorta-collect-on-failure: divergence compares all trials of a cell, which it gives one seed; use "
            "--aorta-collect alone"
        )


def _check_search(values: dict[str, Any]) -> None:
    command = next((name for name in SEARCHES if values[name]), "")
    if not command:
        return
    for name, why in (
        ("shard", "a search is not divided"),
        ("where", "a search is not divided"),
        ("stop", "a search ends by itself"),
    ):
        if values[name]:
            raise OptionError(f"pytest-aorta {command} and --aorta-{name}: use one of them; {why}")
    if command in ("bisect", "amplify") and values["trials"]:
        raise OptionError(f"pytest-aorta {command} and --aorta-trials: use --max-trials N, of all trials together")
    if not values["minimize"]:
        return
    baseline = values["mitigations"] or (("none",),)
    if len(baseline) > 1 or baseline[0] == values["minimize"]:
        given = " and ".join(",".join(names) for names in baseline)
        raise OptionError(
            f"--aorta-mitigations {given}: with pytest-aorta minimize, expected one other mitigation set, the baseline "
            "(default none)"
        )
    values["mitigations"] = (*baseline, values["minimize"])
    values["baseline"] = values["baseline"] or ",".join(baseline[0])


def hosts_of(texts: Sequence[str], source: str) -> tuple[str, ...]:
    """The execnet specifications of hosts that were typed."""
    from pytest_aorta.runtime.hosts import expand_specs

    try:
        return tuple(expand_specs(texts)) if texts else ()
    except ValueError as error:
        raise OptionError(f"{source}: {error}") from None


def _path(text: str, base: Path) -> Path:
    try:
        path = Path(text).expanduser()
        return path if path.is_absolute() or path.exists() else base / path
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL in it, a user that does not exist
        raise OptionError(
            f"--aorta-registry-file: {text!r} is not valid; expected the path of a file: {error}"
        ) from None


@dataclass(frozen=True)
class Plan:
    trials: tuple[TrialSpec, ...]

    @cached_property
    def digest(self) -> str:
        listing = [
            [spec.trial_id, spec.cell, dict(spec.overlay), to_plain(dict(spec.overrides))] for spec in self.trials
        ]
        return hashlib.sha256(canonical_json(listing).encode()).hexdigest()[:8]

    @property
    def collectors(self) -> dict[tuple[str, ...], None]:
        """The sets of collectors that its trials run with."""
        return dict.fromkeys(spec.collect for spec in self.trials if spec.collect)

    @cached_property
    def cells(self) -> dict[str, dict[str, TrialSpec]]:
        """Workload to cell to the first of its trials, in their order."""
        found: dict[str, dict[str, TrialSpec]] = {}
        for spec in self.trials:
            found.setdefault(spec.workload.name, {}).setdefault(spec.cell, spec)
        return found

    @cached_property
    def flat_cells(self) -> dict[str, str | None]:
        """Workload to its only cell, whose files lie in the workload's own folder; ``None`` where it has several."""
        found: dict[str, str | None] = {}
        for spec in self.trials:
            if found.setdefault(spec.workload.name, spec.cell) != spec.cell:
                found[spec.workload.name] = None
        return found

    def paths(self, spec: TrialSpec) -> TrialPaths:
        if self.flat_cells[spec.workload.name] is None:
            return trial_paths(spec.workload.name, spec.cell, spec.trial_index)
        return replace(trial_paths(spec.workload.name, None, spec.trial_index), cell=spec.cell)


def make_plan(selection: Selection, registry: Registry) -> Plan:
    """Resolve every name and order the trials of all selected workloads.

    Raises ``RegistryError`` for an unknown name, ``PlanError`` for a combination that makes no sense.
    """
    return planned(entries_of(selection, registry), selection, registry)


def entries_of(selection: Selection, registry: Registry) -> list[WorkloadEntry]:
    names = distinct_names([command_words(command) for command in selection.commands])
    return [
        *map(registry.workload, selection.workloads),
        *(
            WorkloadEntry(name, COMMAND_TARGET, BUILTIN_SOURCE, {"command": command})
            for name, command in zip(names, selection.commands, strict=True)
        ),
    ]


def planned(entries: Iterable[WorkloadEntry], selection: Selection, registry: Registry) -> Plan:
    """The trials of these workloads; raises as ``make_plan``."""
    cells = trials_of(entries, selection, registry)
    return Plan(ordered(cells, selection.order, selection.turns))


def trials_of(entries: Iterable[WorkloadEntry], selection: Selection, registry: Registry) -> list[list[TrialSpec]]:
    """The trials of every cell: workloads x environments x mitigation sets, each a list over trial indices."""
    if selection.trials < 1:
        raise PlanError(f"the number of trials must be at least 1, not {selection.trials}")
    of_command = selection.output, selection.execution, selection.depends, selection.observe
    entries = [completed(entry, *of_command) for entry in entries]
    environments = [
        replace(each, build=selection.build) if each.commit else each
        for each in map(registry.environment, selection.environments)
    ]
    for name in itertools.chain.from_iterable(selection.mitigations):
        key, equals, value = name.partition("=")
        if equals and (is_secret_name(key) or has_secret(value)):
            raise PlanError(
                f"mitigation {key}=... may hold a secret, and names of trials show it; use --aorta-extra-env"
            )
    sets = [list(map(registry.mitigation, names)) for names in selection.mitigations]
    if selection.resources.total_slots * selection.resources.workers > 1:
        for each in itertools.chain.from_iterable(sets):
            if each.beside:
                raise PlanError(f"mitigation {each.name}: trials of other slots would feel it, too; use one slot")
    of_sets = [_collectors_of(mitigations, selection, registry) for mitigations in sets]
    refuse_repeated("workload", [entry.name for entry in entries])
    check_axes(selection.environments, selection.mitigations)
    same: dict[str, str] = {}
    if selection.collect:
        from pytest_aorta.collectors.contract import load

        if "divergence" in load(selection.collect, registry):
            same = {"PYTHONHASHSEED": "0"}  # sets of texts have one order in all trials
    # All trials of a cell share one.
    overlays: dict[tuple[int, int], dict[str, str]] = {}
    for place in itertools.product(range(len(environments)), range(len(sets))):
        overlays[place] = {**same, **overlay(environments[place[0]], sets[place[1]], selection.extra_env)}
    watched = tuple(sorted(set().union(*overlays.values())))
    firsts: dict[str, TrialSpec] = {}
    for entry, ((environment_index, mitigation_index), variables) in itertools.product(entries, overlays.items()):
        options = {**entry.options, **selection.config}
        for mitigation in sets[mitigation_index]:
            options |= mitigation.options
        folder = environments[environment_index].folder or selection.folder
        first = TrialSpec(
            workload=entry,
            environment=_behind(sets[mitigation_index], environments[environment_index]),
            mitigations=tuple(mitigation.name for mitigation in sets[mitigation_index]),
            overlay=variables,
            environment_index=environment_index,
            mitigation_index=mitigation_index,
            trial_index=0,
            overrides=options,
            collect=of_sets[mitigation_index],
            steps=selection.steps,
            execution=selection.execution,
            limits=selection.limits,
            resources=selection.resources,
            watched=watched,
            origin=None if folder is None else Origin(None, folder, tuple(filter(None, sys.path))),
        )
        other = firsts.setdefault(first.item_name, first)
        if other is not first:
            one, two = (
                f"environment {it.environment.name!r} with mitigations {','.join(it.mitigations)!r}"
                for it in (other, first)
            )
            raise PlanError(
                f"{one} and {two} would both be called {first.cell!r}; rename one of them, or run them apart"
            )
    how: str = selection.order
    if how != "grouped":
        how = f"{how}, seed {Plan((*firsts.values(),)).digest}"
    cells = []
    for first in firsts.values():
        indices = range(selection.cell_trials.get(first.cell, selection.trials))
        known = 0 if selection.may_end_early or selection.searches else len(indices)
        of_cell = replace(first, order=how, cell_trials=known)
        cells.append([replace(of_cell, trial_index=index) for index in indices])
    labels = [first.cell for first in firsts.values()]
    for label in selection.cell_trials:
        if label not in labels:
            raise PlanError(f"cell_trials: there is no cell {label!r}, but {', '.join(labels)}")
    return cells


def _behind(mitigations: Sequence[Mitigation], environment: Environment) -> Environment:
    """The environment behind the launcher prefixes of mitigations, of which the last one is the outermost.

    And beside the program of the last one that has any.
    """
    words = [word for mitigation in reversed(mitigations) for word in mitigation.launcher]
    beside = next((each.beside for each in reversed(mitigations) if each.beside), environment.beside)
    if not words and not beside:
        return environment
    return replace(environment, launcher=(*words, *environment.launcher), beside=beside)


def _collectors_of(mitigations: Iterable[Mitigation], selection: Selection, registry: Registry) -> tuple[str, ...]:
    """Those of ``collect=...`` among the mitigations, else those of ``--aorta-collect``."""
    from_set = [mitigation.collect for mitigation in mitigations if mitigation.collect is not None]
    if not from_set:
        return selection.collect_first
    if selection.collect:
        raise PlanError("--aorta-vary collect=... and --aorta-collect: use one of them")
    from pytest_aorta.collectors.contract import load

    if "divergence" in load(from_set[-1], registry):
        raise PlanError("--aorta-vary collect=divergence: it compares all trials of a cell; use --aorta-collect")
    return from_set[-1]


def with_axis(sets: Iterable[Sequence[str]], values: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Mitigation sets, each with each value of an axis, which is one or several names itself."""
    sets = [[name for name in names if name != "none"] for names in sets]
    return tuple((*names, *value) or ("none",) for names in sets for value in values)


def option_text(value: Any) -> str:
    """The VALUE of ``config.NAME=VALUE`` that is read as this one."""
    if isinstance(value, str) and option_value(value) == value:
        return value
    return json.dumps(value, separators=(",", ":"))


def check_axes(environments: Sequence[str], mitigations: Sequence[Sequence[str]], more: str = "--aorta-trials") -> None:
    """Raise ``PlanError`` where one is given twice; ``more`` is what gives more trials."""
    refuse_repeated("environment", environments, more)
    refuse_repeated("mitigation set", [",".join(names) for names in mitigations], more)


def refuse_repeated(what: str, names: Sequence[str], more: str = "--aorta-trials") -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise PlanError(f"{what} {twice[0]!r} is given twice; for more trials use {more}")


def overlay(
    environment: Environment, mitigations: Sequence[Mitigation], extra_env: Mapping[str, str]
) -> dict[str, str]:
    """Variables of the environment, then of each mitigation in order, then the extra ones; later ones win.

    Raises ``PlanError`` where one belongs to the launcher of the ranks, or is no text.
    """
    __tracebackhide__ = True  # pytest would show the arguments
    merged: dict[str, str] = {}
    layers: list[Environment | Mitigation] = [environment, *mitigations]
    for what in layers:
        check_variables(f"{type(what).__name__.lower()} {what.name!r}", what.env)
        merged.update(what.env)
    check_variables("the extra variables", extra_env)
    return {**merged, **extra_env}


def check_variables(source: str, variables: object) -> None:
    """Raise ``PlanError`` for variables of ``source`` that cannot be overlaid. No message shows a value."""
    __tracebackhide__ = True  # pytest would show the arguments
    if not isinstance(variables, Mapping):
        raise PlanError(f"{source}: expected a mapping of variables to texts, not {type(variables).__name__}")
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise PlanError(f"{source}: the value of {name!r} must be a text, not {type(value).__name__}")
        if not is_variable(name, value):
            shown = name.partition("=")[0] + "=..." if "=" in name else name  # what follows the "=" is a value
            raise PlanError(f"{source}: {shown!r} is not valid; expected {PAIRS}")
        if LAUNCHER_OWNED.fullmatch(name):
            raise PlanError(f"{source}: {name} is set by the launcher of the ranks and cannot be overlaid")


def ordered(cells: Sequence[Sequence[TrialSpec]], order: Order, turns: int | None = None) -> tuple[TrialSpec, ...]:
    """All trials in running order.

    ``interleaved``: rounds of one trial of every cell, in blocks of at most ``WARM_CELLS`` cells, so that drift of the
    host does not look like the effect of a cell. The first round is in the order of the cells; in those that follow
    the cells take other turns, see ``turns_of_round``, so that what repeats in step with the rounds (a device of
    several, a worker, a periodic load) does not hit one cell alone. ``grouped``: cell after cell. ``random``: shuffled.
    The seed is taken from the cells, so that every process that takes part has the same order.

    ``turns``: after so many trials of each of its cells, a block gives way to the next; ``None`` for all.
    """
    if order == "grouped":
        return tuple(spec for cell in cells for spec in cell)
    count = max(map(len, cells), default=0)
    # Of one trial of each cell: the same in every process that takes part.
    seed = Plan(tuple(cell[0] for cell in cells if cell)).digest
    step = turns or max(count, 1)
    trials = [
        cells[start + turn][index]
        for first in range(0, count, step)
        for start in range(0, len(cells), WARM_CELLS)
        for index in range(first, min(first + step, count))
        for turn in turns_of_round(index, min(WARM_CELLS, len(cells) - start), f"{seed} {start}")
        if index < len(cells[start + turn])
    ]
    if order == "random":
        random.Random(seed).shuffle(trials)
    return tuple(trials)


def turns_of_round(index: int, cells: int, seed: str) -> list[int]:
    """The order of so many cells within a round.

    So many rounds as there are cells are a random Latin square: each cell has each place once. The very first round
    has them in their own order.
    """
    number, row = divmod(index, cells)
    names, places, shifts = _square(number, cells, seed)
    return [names[(place + shifts[row]) % cells] for place in places]


@lru_cache(maxsize=64)
def _square(number: int, cells: int, seed: str) -> tuple[list[int], list[int], list[int]]:
    """A cyclic Latin square: the names of its symbols, its columns and its rows, each in an order by chance."""
    generator = random.Random(f"{seed} {number}")
    names, places, shifts = (generator.sample(range(cells), cells) for _ in range(3))
    if number == 0:
        for column, place in enumerate(places):
            names[(place + shifts[0]) % cells] = column
    return names, places, shifts


def unit_of(spec: TrialSpec) -> str:
    return f"{spec.cell}/{spec.trial_index}"


def cell_value(spec: TrialSpec) -> dict[str, Json]:
    return {
        "workload": spec.workload.name,
        "environment": spec.environment.name,
        "mitigations": list(spec.mitigations),
        "config": to_plain(dict(spec.overrides)),
    }


def trial_value(spec: TrialSpec) -> dict[str, Json]:
    return {**cell_value(spec), "trial": spec.trial_index}
