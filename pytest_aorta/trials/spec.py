"""The request for one trial: everything resolved from names to values, and the fingerprint of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.texts import environment_label, identifier
from pytest_aorta.probe.guard import plain_data
from pytest_aorta.probe.variables import DIGEST, REDACTED, recorded_variables
from pytest_aorta.trials.execution import DEFAULTS, PLACES, Execution, Limits, Resources
from pytest_aorta.trials.records import canonical_json
from pytest_aorta.trials.seeding import derived_seed

if TYPE_CHECKING:  # not in the processes of trials
    from pytest_aorta.registry import Environment, WorkloadEntry
    from pytest_aorta.trials.result import TrialResult


@dataclass(frozen=True)
class Origin:
    """Seeds and folders of a trial that come from elsewhere: from a replayed record, or from the folder of a recipe.

    Attributes:
        seed: seed of the trial; ``None`` draws one from the operating system.
        cwd: working directory.
        sys_path: what to add to ``sys.path``.
        rank_seed: seed of this rank, if pytest is a rank itself: then each rank has drawn its own.
        hash_seed: ``PYTHONHASHSEED`` of the original trial.
    """

    seed: int | None
    cwd: str
    sys_path: tuple[str, ...]
    rank_seed: int | None = None
    hash_seed: int | None = None


@dataclass(frozen=True)
class TrialSpec:
    """One trial of one cell.

    Attributes:
        overlay: the variables of environment, mitigations and extra variables, later ones winning.
        environment_index, mitigation_index: positions in the plan.
        trial_index: 0..N-1.
        overrides: options for the workload, values as given (text from a command line, anything from Python).
        steps: number of steps, ``None`` for the workload's own default.
        collect: names of collectors, with options; with ``divergence``, all trials have the same seed.
        watched: names of the variables that any cell of the plan sets.
        origin: given for a replayed trial, and for one that runs in another folder than pytest.
        order: how the trials of its plan were put in order, and by which seed; empty for one that is in no plan.
        cell_trials: number of trials of its cell; 0 where that is not known before.
    """

    workload: WorkloadEntry
    environment: Environment
    mitigations: tuple[str, ...]
    overlay: Mapping[str, str] = field(repr=False)  # may be secrets
    environment_index: int
    mitigation_index: int
    trial_index: int
    overrides: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None
    execution: Execution = field(default_factory=Execution)
    limits: Limits = field(default_factory=Limits)
    collect: tuple[str, ...] = ()
    resources: Resources = field(default_factory=Resources)
    watched: tuple[str, ...] = ()
    origin: Origin | None = None
    order: str = ""
    cell_trials: int = 0

    @property
    def seed(self) -> int | None:
        for text in self.collect:
            if text.partition(":")[0] == "divergence":  # it compares what should be equal
                return derived_seed(self.execution.seed or 0, "trial", 0)
        return None if self.execution.seed is None else derived_seed(self.execution.seed, "trial", self.trial_index)

    @property
    def given_seed(self) -> int | None:
        """The requested seed, else the seed of the replayed record."""
        return self.origin.seed if self.seed is None and self.origin is not None else self.seed

    @property
    def all_watched(self) -> list[str]:
        """Names of variables that are always recorded, sorted."""
        return sorted({*self.watched, *self.overlay})

    @property
    def trial_id(self) -> str:
        return f"{self.workload.name}_d{self.environment_index}_m{self.mitigation_index}_t{self.trial_index}"

    @property
    def environment_data(self) -> dict[str, Any]:
        """The environment as JSON values, for workloads that look at it, with the names of its variables only."""
        of = self.environment
        place = {"docker": of.docker, "venv": of.venv, "rocm": of.rocm}
        return {"name": of.name, **place, "source_package": of.source_package, "env": sorted(of.env)}

    @property
    def cell(self) -> str:
        return _cell(self.environment.name, self.mitigations)

    @property
    def item_name(self) -> str:
        """The pytest item's name, for instance ``fsdp[local-tf32_off+xnack-3]``."""
        return f"{identifier(self.workload.name)}[{self.cell}-{self.trial_index}]"


@lru_cache(maxsize=4096)
def _cell(environment: str, mitigations: tuple[str, ...]) -> str:
    return f"{identifier(environment_label(environment))}-{'+'.join(map(identifier, mitigations))}"


# What the request of a trial is made of, part by part, and the fingerprint that is taken of all parts. A part is a JSON
# value. Parts that are empty are left out: the fingerprint does not change when a version learns to look at something
# that this trial does not have.

Parts = dict[str, Any]

#: Parts that a record has under other names.
_ELSEWHERE = ("config", "mitigations", "trial")

#: Parts that are known only when a trial is over, and that the fingerprint leaves out: digests of files imported later,
#: and top-level modules of installed distributions that were imported.
IMPORTED_LATER, IMPORTED_MODULES = "imported_later", "imported_modules"

#: Parts that the request alone decides. A record of a trial whose cell was not prepared has no others.
REQUESTED = (
    "workload",
    "environment",
    "overlay",
    "launcher",
    "isolation",
    "preload",
    "cwd",
    "memory",
    "finite",
    "elastic",
)

_NONE: Mapping[str, Any] = MappingProxyType({})

#: Parts of the surroundings in which the processes of one trial may differ.
_OF_ONE_PROCESS = ("interpreter", "cpus", "variables")


@dataclass(frozen=True)
class ImposedCounts:
    """What a run imposes on a trial, as numbers that are equal for all trials of a cell.

    ``threads``: computing threads of each process; ``cores``: physical ones; ``devices`` that it sees. ``None`` for as
    many as alone. Which of them it gets depends on what else runs, and is in its record only.
    """

    threads: int | None = None
    cores: int | None = None
    devices: int | None = None


def fingerprint_parts(
    spec: TrialSpec,
    nproc: int = 0,
    imposes: ImposedCounts = ImposedCounts(),
    *,
    config: Mapping[str, Any] = _NONE,
    sources: Mapping[str, str] = _NONE,
    data_files: Mapping[str, str | None] = _NONE,
    surroundings: Mapping[str, Any] = _NONE,
    together: bool = False,
) -> Parts:
    """All parts of the request of a trial with ``nproc`` ranks.

    Args:
        spec: the trial.
        nproc: number of its ranks.
        imposes: what the resources of the run change for it.
        config: options of the workload; this and what follows is known once it has been imported.
        sources: digests of its source files.
        data_files: digests of the files that it declares; ``None`` for one that is not there.
        surroundings: as of ``probe.surroundings``.
        together: whether several pytest processes run it together: each of them decides whether an earlier result is
            kept, and all have to decide alike, so what each process may have of its own is left out.
    """
    environment, execution = spec.environment, spec.execution
    where, _, cls = spec.workload.target.rpartition(":")
    surroundings = dict(surroundings)
    if together:
        for name in _OF_ONE_PROCESS:
            surroundings.pop(name, None)
    else:
        surroundings["variables"] = dict(surroundings.get("variables", {}))
        for name in spec.overlay:
            surroundings["variables"].pop(name, None)
    overlay: dict[str, str] = {}
    for name, value in spec.overlay.items():
        overlay[name] = next(iter(recorded_variables({name: value}).values()), REDACTED)
        if overlay[name] == REDACTED:
            overlay[name] = DIGEST + hashlib.sha256(value.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    # Its variables are in the overlay, and where it is registered decides nothing.
    registered = {**vars(environment), "env": None, "source_package": None}
    for name, value in list(registered.items()):
        if not value:
            del registered[name]
    imposed = dict(vars(imposes))
    for name, value in vars(imposes).items():
        if value is None:
            del imposed[name]
    parts: Parts = {
        "workload": [spec.workload.name, cls if where.endswith(".py") else spec.workload.target],
        "sources": dict(sources),
        "data_files": dict(data_files),
        "config": dict(config),
        "environment": registered,
        "mitigations": list(spec.mitigations),
        "overlay": overlay,
        "launcher": execution.launcher,
        "nproc": nproc,
        "isolation": execution.isolation,
        "preload": list(execution.preloaded),  # what the first trial imports changes nothing that the others see
        "cwd": None if execution.cwd == "here" else execution.cwd,
        "trial": spec.trial_index,
        "memory": spec.limits.memory,
        "finite": [*spec.limits.allow_nonfinite, ""] if spec.limits.fail_on_nonfinite else None,
        "seed": spec.seed,
        "collect": list(spec.collect),
        "imposed": imposed,
        **surroundings,
    }
    if execution.elastic != DEFAULTS:
        parts["elastic"] = {**vars(execution.elastic), **dict.fromkeys(PLACES)}
    for name, value in list(parts.items()):
        if value is None or value == {} or value == []:
            del parts[name]
    return parts


def requested_parts(spec: TrialSpec) -> Parts:
    """The parts of ``REQUESTED`` that are not empty; they are known without the workload."""
    parts = fingerprint_parts(spec)
    return {name: parts[name] for name in REQUESTED if name in parts}


def fingerprint(parts: Parts) -> str:
    """Digest of the parts that are known before the trial starts."""
    known = dict(parts)
    for name in (IMPORTED_LATER, IMPORTED_MODULES):
        known.pop(name, None)
    return hashlib.sha256(canonical_json(known).encode()).hexdigest()


def recorded_parts(parts: Parts, imported_later: Mapping[str, str], modules: Sequence[str] = ()) -> Parts:
    """The ``fingerprint_parts`` of a record.

    ``imported_later``: digests of the source files that were imported after the preparation of the cell; ``modules`` of
    installed distributions that were imported at all, where that is known.
    """
    recorded: Parts = plain_data(parts)  # names and paths that are no UTF-8 cannot be written
    for name in _ELSEWHERE:
        recorded.pop(name, None)
    later = {IMPORTED_LATER: plain_data(imported_later)} if imported_later else {}
    return {**recorded, **later, **({IMPORTED_MODULES: plain_data(list(modules))} if modules else {})}


def parts_of(record: TrialResult) -> Parts:
    """All parts of a record's request; empty if the record does not have all of them."""
    if not record.fingerprint_parts or record.request_fingerprint is None:
        return {}
    elsewhere = (record.config, record.mitigations_applied, record.trial_index)
    return {**dict(zip(_ELSEWHERE, elsewhere, strict=True)), **record.fingerprint_parts}


#: Longest value that is shown.
_LONGEST = 60

#: The difference to a request that an earlier version has recorded.
UNKNOWN = "recorded without the parts of its request"

#: Name to version of all installed distributions.
Versions = Mapping[str, str]


def differences(
    earlier: Parts,
    now: Parts,
    installed: Callable[[str], Versions | None] = lambda digest: None,
    concerned: Callable[[Collection[str]], Collection[str]] = lambda changed: changed,
) -> list[str]:
    """One line for each thing that has changed: ``OMP_NUM_THREADS 4 -> 1``, ``mymodule.py changed``.

    Shows the values of variables that may be recorded.

    Args:
        earlier: parts of a record's request.
        now: parts of the new request.
        installed: returns the list of distributions with a digest, or ``None``.
        concerned: selects the changed distributions that matter.
    """
    if not earlier:
        return [UNKNOWN]
    changes: list[str] = []
    for name in dict.fromkeys([*now, *earlier]):
        before, after = earlier.get(name), now.get(name)
        if before == after or name in (IMPORTED_LATER, IMPORTED_MODULES, "packages"):
            continue
        if name in ("sources", "data_files"):
            changes += changed_files(before or {}, after or {})
        elif name in ("overlay", "variables"):
            was, is_now = ({**parts.get("variables", {}), **parts.get("overlay", {})} for parts in (earlier, now))
            changes += _each("", was, is_now, missing="unset")
        elif name in ("config", "environment", "elastic", "imposed"):
            changes += _each("option " if name == "config" else f"{name} ", before or {}, after or {})
        elif name in ("python", "torch"):  # begin with a version, which is all that is shown when it is another one
            one, two = (str(build).partition(" ")[0] for build in (before, after))
            build = "Python" if name == "python" else name
            changes.append(f"{build} {one} -> {two}" if one != two else f"{build} {one} built anew")
        else:
            missing = "here" if name == "cwd" else "none"
            changes.append(f"{_NAMES.get(name, name)} {_shown(before, missing)} -> {_shown(after, missing)}")
    if earlier.get("packages") != now.get("packages"):
        known = {line.partition(" ")[0] for line in changes}
        digests = earlier.get("packages"), now.get("packages")
        had, has = (None if digest is None else installed(digest) for digest in digests)
        if had is None or has is None:
            changes.append("installed packages changed")
        else:
            changed = concerned([name for name in {**had, **has} if had.get(name) != has.get(name)])
            had, has = ({name: each[name] for name in each if name in changed} for each in (had, has))
            packages = _each("", had, has, missing="not installed")
            changes += sorted(line for line in packages if line.partition(" ")[0] not in known)
    return list(dict.fromkeys(changes))


#: Parts whose names say too little.
_NAMES = {
    "cpus": "number of CPUs",
    "cwd": "working directory",
    "nproc": "number of ranks",
    "trial": "trial index",
}


def _each(what: str, before: Mapping[str, Any], after: Mapping[str, Any], missing: str = "none") -> list[str]:
    changed = []
    for name in dict.fromkeys([*after, *before]):
        if canonical_json(before.get(name)) != canonical_json(after.get(name)):  # a NaN equals a NaN
            one, two = (_shown(mapping.get(name), missing) for mapping in (before, after))
            changed.append(f"{what}{name} changed" if one == two else f"{what}{name} {one} -> {two}")
    return changed


def changed_files(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    changed = [path for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path)]
    words = ((path, before.get(path) is None, after.get(path) is None) for path in changed)
    return [f"{path} {'is new' if is_new else 'is gone' if is_gone else 'changed'}" for path, is_new, is_gone in words]


def _shown(value: Any, missing: str = "none") -> str:
    if value is None:
        return missing
    text = REDACTED if str(value).startswith(DIGEST) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
