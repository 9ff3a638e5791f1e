"""Runs trials again from their records: reads trial files into specs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from pytest_aorta.common.import_target import module_spec
from pytest_aorta.common.texts import identifier
from pytest_aorta.launch.launch_mode import SCRIPT_TARGET, is_multi_node, own_rank, under_launcher, world_size
from pytest_aorta.probe.environment_facts import FILES
from pytest_aorta.probe.variables import REDACTED
from pytest_aorta.registry import Environment, WorkloadEntry
from pytest_aorta.triage.environments import Environments
from pytest_aorta.triage.environments import differences as differences_of_environments
from pytest_aorta.trials.execution import NAMES, PLACES, Execution, elastic_options
from pytest_aorta.trials.loading import file_digest
from pytest_aorta.trials.result import SCHEMA_VERSION, ReplayOf, Request, TrialResult
from pytest_aorta.trials.spec import IMPORTED_LATER, Origin, TrialSpec, differences, parts_of
from pytest_aorta.workspace.paths import REPLAY, TrialPaths

#: Parts of the snapshot that are compared; the others depend on slots, or on how far the trial came.
_SECTIONS = {
    *("accelerator", "torch", "packages", "python", "env_vars", "host", "runtime_context", "compilers", "git"),
    *(FILES, IMPORTED_LATER),
}

#: Compared parts of the fingerprint, which records have nowhere else.
_PARTS = ("config", "imposed", "cpus", "nproc", "preload", "cwd")

#: Variables that a launcher sets anew for every trial.
_OF_A_LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")

#: Longest value that is shown.
_LONGEST = 60


def changes(then: TrialResult, now: TrialResult) -> list[str]:
    """One line for each difference in host, interpreter, packages, code, variables or seeds."""
    lines: list[str] = []
    pairs: list[tuple[str, Any, Any, str]] = [("host", then.host, now.host, "none")]
    overlaid = {*_OF_A_LAUNCH, *NAMES}
    for request in filter(None, (then.request, now.request)):
        overlaid |= request.ambient.keys() | request.overlay.keys()
    if then.request is not None and now.request is not None:
        pairs.append(("interpreter", then.request.interpreter, now.request.interpreter, "none"))
        pairs.append(("working directory", then.request.cwd, now.request.cwd, "none"))
        before, after = then.request.ambient, now.request.ambient
        pairs += [(name, before[name], after[name], "unset") for name in sorted(before.keys() & after.keys())]
    for what, one, two, nothing in pairs:
        if one != two:
            texts = [nothing if value is None else str(value) for value in (one, two)]
            cut = [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in texts]
            lines.append(f"{what} {' -> '.join(cut)}")
    has_snapshot = bool(then.env.get("python"))
    if has_snapshot and now.env.get("python"):  # else one of them did not get as far as its snapshot
        environments = Environments(), Environments()
        for record, environment in zip((then, now), environments, strict=True):
            environment.add(record.to_dict())
        others = differences_of_environments(*environments)
        lines += [str(each) for each in others if each.fact.section in _SECTIONS and each.fact.name not in overlaid]
    if then.seeds is None and not any(rank.seeds for rank in then.ranks):
        lines += ["seeds: there are none in the record"] if has_snapshot else []  # else it had not come to them
    else:
        of_ranks = {rank.rank: rank.seeds for rank in now.ranks}
        seeds = [("seeds", then.seeds, now.seeds)]
        seeds += [(f"seeds of rank {rank.rank}", rank.seeds, of_ranks.get(rank.rank)) for rank in then.ranks]
        for what, first, second in seeds:
            if first is not None and second is not None and first != second:
                same = first.seed == second.seed
                change = f" {first.seed} -> {second.seed}" if not same else ": other generators were seeded"
                lines.append(f"{what}{change}")
    parts = [{name: it for name, it in parts_of(each).items() if name in _PARTS} for each in (then, now)]
    if all(parts):
        lines += differences(parts[0], parts[1])
    if then.request_fingerprint and now.request_fingerprint and then.request_fingerprint != now.request_fingerprint:
        lines.append("the fingerprint of the request")
    return list(dict.fromkeys(lines))


_TRIAL_FILE = re.compile(r"trial_\d+\.json")


class ReplayError(ValueError):
    """A record cannot be replayed; the message names its file."""


@dataclass(frozen=True)
class Replay:
    """A trial to run again from the record in a file."""

    file: Path
    record: TrialResult
    spec: TrialSpec
    number: int = 1  # among several replays of this name
    folder: str = REPLAY  # of their results

    @property
    def name(self) -> str:
        return f"{self.spec.item_name[:-1]}{self._suffix}]"

    @property
    def nodeid(self) -> str:
        return f"{REPLAY}::{self.name}"

    @property
    def _suffix(self) -> str:
        return "" if self.number == 1 else f"~{self.number}"

    @property
    def paths(self) -> TrialPaths:
        """Paths beside the results of other trials, so that the original record stays."""
        cell = identifier(self.spec.cell) + self._suffix
        folder = PurePosixPath(self.folder, identifier(self.spec.workload.name), cell)
        return TrialPaths(folder / f"trial_{self.spec.trial_index}.json")

    def paths_of(self, _: TrialSpec) -> TrialPaths:
        """The paths of its only trial, as a plan gives them."""
        return self.paths

    @property
    def secrets(self) -> list[str]:
        """Names of the variables whose values the record does not have."""
        return [name for name, value in _request(self.record).overlay.items() if value == REDACTED]

    def compared(self, now: TrialResult) -> TrialResult:
        """The record of the replay, with the differences from the original one added."""
        then = self.record
        replay_of = ReplayOf(
            file=str(self.file),
            started_at=then.started_at,
            exit_status=then.exit_status,
            request_fingerprint=then.request_fingerprint,
            differences=changes(then, now),
        )
        return now.model_copy(update={"replay_of": replay_of})


def find_replays(files: Iterable[Path], variables: Mapping[str, str], hosts: tuple[str, ...] = ()) -> list[Replay]:
    """The replays of all records in ``files``, which may be folders.

    ``variables``: values of secrets, which records do not have. ``hosts``: execnet specifications of other hosts to run
    on. Raises ``ReplayError`` with all problems, one per line.
    """
    by_file: dict[Path, TrialResult] = {}
    problems = []
    for given in files:
        try:
            if not given.is_dir():
                by_file[given.absolute()] = read_record(given)
                continue
            below = [file for file in sorted(given.rglob("trial_*.json")) if _TRIAL_FILE.fullmatch(file.name)]
            visible = [file for file in below if not any(it.startswith(".") for it in file.relative_to(given).parts)]
            records = {file.absolute(): read_record(file) for file in visible}
            chosen = {file: record for file, record in records.items() if record.replay_of is None}
            if not chosen:
                raise ReplayError(f"{given}: there is no trial file in this folder")
            by_file.update(chosen)
        except ReplayError as error:
            problems.append(str(error))
    replays: list[Replay] = []
    names: Counter[str] = Counter()
    for file, record in by_file.items():
        try:
            spec = spec_of(record, variables, hosts)
        except ReplayError as error:
            problems.append(f"{file}: {error}")
            continue
        names[spec.item_name] += 1
        replays.append(Replay(file, record, spec, names[spec.item_name]))
    if problems:
        raise ReplayError("\n".join(problems))
    return replays


def read_record(file: Path) -> TrialResult:
    """The record in a file; raises ``ReplayError`` if it is not a record, or has no request."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReplayError(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ReplayError(f"{file}: no record of a trial: it is not JSON: {error}") from None
    if not isinstance(content, dict) or not {"schema_version", "trial_id"} <= content.keys():
        raise ReplayError(f"{file}: no record of a trial, which has a schema_version and a trial_id")
    if content["schema_version"] != SCHEMA_VERSION:
        raise ReplayError(
            f"{file}: has schema_version {content['schema_version']!r}; this release of pytest-aorta reads "
            f"{SCHEMA_VERSION!r}"
        )
    if content.get("request") is None:
        raise ReplayError(
            f"{file}: has no section `request`, which says how the trial was run; an earlier release wrote it"
        )
    try:
        return TrialResult.from_dict(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ReplayError(f"{file}: no record of a trial: {where}: {first['msg']}") from None


def spec_of(record: TrialResult, variables: Mapping[str, str], hosts: tuple[str, ...] = ()) -> TrialSpec:
    __tracebackhide__ = True  # pytest would show the variables
    request = _request(record)
    try:
        given = {name: value for name, value in request.elastic.items() if not (hosts and name in PLACES)}
        elastic = elastic_options(given)
    except ValueError as error:
        raise ReplayError(f"request.elastic: {error}") from None
    is_external = record.elastic is not None and record.elastic.launcher == "external"
    if is_external and not under_launcher():
        ranks = record.env.get("env_vars", {}).get("WORLD_SIZE", len(record.ranks))
        raise ReplayError(
            "pytest was a rank of an outer launcher; start it as one: "
            f"torchrun --nproc_per_node={ranks} -m pytest --aorta-replay FILE"
        )
    if not is_external and under_launcher() and world_size() > 1:
        raise ReplayError(
            "pytest is a rank of an outer launcher (RANK and WORLD_SIZE are set), which it was not when this was "
            "recorded; start it without"
        )
    if is_multi_node(elastic) and not hosts:
        raise ReplayError(f"this was a trial of several nodes; name their {elastic.nnodes[0]} hosts with --aorta-host")
    environment = request.environment
    if any(REDACTED in word for word in (*environment.launcher, *environment.engine_options, *environment.beside)):
        raise ReplayError(
            f"the command of environment {environment.name!r} holds a secret, which is not recorded; run the "
            f"trial with --aorta-environment {environment.name} instead"
        )
    secrets = [name for name, value in request.overlay.items() if value == REDACTED]
    if missing := [name for name in secrets if name not in variables]:
        raise ReplayError(
            f"the value of {', '.join(missing)} is a secret, which is not recorded; give it with "
            + " ".join(f"--aorta-extra-env {name}=..." for name in missing)
        )
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in environment.model_dump().items()
    }
    rank_seed = None
    if is_external:
        own = (rank.seeds.seed for rank in record.ranks if rank.rank == own_rank() and rank.seeds is not None)
        rank_seed = next(own, None)
    cwd = request.cwd if os.path.isdir(request.cwd) else os.getcwd()
    return TrialSpec(
        workload=WorkloadEntry(request.workload.name, request.workload.target, request.workload.source_package),
        environment=Environment(**fields),
        mitigations=tuple(record.mitigations_applied),
        overlay={**request.overlay, **{name: variables[name] for name in secrets}},
        environment_index=request.environment_index,
        mitigation_index=request.mitigation_index,
        trial_index=record.trial_index or 0,
        overrides=_config(request),
        steps=request.steps,
        execution=Execution(
            isolation=request.isolation,
            launcher=request.launcher,
            nproc=request.nproc,
            elastic=elastic,
            seed=request.run_seed,
            cwd=request.cwd_of_trial,
            preload=tuple(parts_of(record).get("preload", ())) or "auto",
        ),
        limits=request.limits,
        collect=tuple(request.collect),
        resources=replace(request.resources, hosts=hosts),
        watched=tuple(request.ambient),
        origin=Origin(request.seed, cwd, tuple(request.sys_path), rank_seed, _hash_seed(record)),
    )


def _hash_seed(record: TrialResult) -> int | None:
    own = None if record.seeds is None else record.seeds.hash
    return _request(record).hash_seed if own is None else own


def _request(record: TrialResult) -> Request:
    assert record.request is not None  # read_record
    return record.request


def _config(request: Request) -> dict[str, Any]:
    target, environment = request.workload.target, request.environment
    where = target.rpartition(":")[0]
    if target == SCRIPT_TARGET:
        source = request.config.get("source")
        if source is not None and not os.path.isfile(source):
            raise ReplayError(f"the script {source} is gone")
        return {**request.config, "digest": source and file_digest(Path(source))}
    if where.endswith(".py") and not os.path.isfile(where):
        raise ReplayError(f"the file of its workload, {where}, is gone")
    # Another interpreter, or what a launcher leads to, may have modules that are not here.
    if not where.endswith(".py") and environment.venv is None and not (environment.launcher or environment.enter):
        top = where.partition(".")[0]
        if module_spec(top, request.sys_path) is None:
            raise ReplayError(f"the module of its workload, {where}, is not installed for {sys.executable}")
    return dict(request.config)
