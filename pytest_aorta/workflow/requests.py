"""The request of an action's trials: a selection, and digests that reveal stale results.

A digest is equal for a cell as it is planned and for a record of one of its trials. It is made of what can be known
without importing the workload: names, options as they were given, variables, how the trials are started. What the
fingerprint of a trial has besides (defaults of options, installed packages, the machine) is compared when the trial is
about to run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pytest_aorta.common.conditions import Json
from pytest_aorta.common.import_target import module_spec
from pytest_aorta.common.texts import identifier
from pytest_aorta.plan import Plan, PlanError, Selection, cell_value, entries_of, option_text, trials_of, with_axis
from pytest_aorta.probe.guard import plain_data
from pytest_aorta.registry import Registry, RegistryError
from pytest_aorta.settings import OPTION, mitigation_set
from pytest_aorta.trials.execution import elastic_options
from pytest_aorta.trials.losses import is_in_doubt
from pytest_aorta.trials.output import OutputRules
from pytest_aorta.trials.records import canonical_json, decode_non_finite
from pytest_aorta.trials.spec import REQUESTED, TrialSpec, requested_parts
from pytest_aorta.trials.workload import to_plain
from pytest_aorta.workflow.known import RequestDigests
from pytest_aorta.workflow.recipe import Action, Recipe, present

#: Trials of a cell that are counted.
_MOST_TRIALS = 10**7

_STATUSES = ("ok", "workload_failed", "timeout", "infrastructure_failed")


@dataclass(frozen=True)
class CellRequest:
    digest: str
    value: dict[str, Json]
    folder: tuple[str, str]


#: Action to cell to what is asked of it.
Requests = Mapping[str, Mapping[str, CellRequest]]


def selection_of(action: Action, recipe: Recipe, base: Selection) -> Selection:
    """The selection of an action with a workload; ``base`` has the values that it leaves open."""
    table = action.table
    # The mitigation sets, each with every combination of the values of the axes.
    sets = tuple(mitigation_set(names) for names in table.mitigations)
    for key, values in table.axes.items():
        if key != "extra_env":
            added: list[tuple[str, ...]] = [(f"{OPTION}{key}={option_text(each)}",) for each in values]
        elif all(isinstance(each, Mapping) for each in values):
            added = [tuple(f"{name}={value}" for name, value in each.items()) for each in values]
        else:
            raise recipe.error(
                action, f"action {action.name!r}: axes.extra_env: expected an array of tables of variables"
            )
        sets = with_axis(sets, added)
    for axis in table.vary:
        sets = with_axis(sets, axis)
    try:
        elastic = elastic_options(table.distributed.elastic)
    except ValueError as error:
        raise recipe.error(action, f"action {action.name!r}, distributed.elastic: {error}") from None
    return replace(
        base,
        workloads=() if table.workload is None else (table.workload,),
        commands=() if table.command is None else (table.command,),
        output=OutputRules.of(table),
        depends=table.depends,
        folder=None if table.command is None or os.getcwd() == str(recipe.root) else str(recipe.root),
        trials=table.trials,
        cell_trials=table.cell_trials,
        environments=table.environments,
        mitigations=sets,
        extra_env=table.extra_env,
        steps=table.steps,
        config=table.config,
        collect=table.collect,
        results_dir=recipe.directories / action.name,
        execution=replace(
            base.execution,
            isolation=table.isolation,
            cwd=table.cwd or base.execution.cwd,
            launcher=table.distributed.launcher,
            nproc=table.distributed.nproc,
            elastic=elastic,
            seed=table.seed,
        ),
        limits=replace(base.limits, timeout=table.timeout, stall_timeout=table.stall_timeout),
    )


def cell_requests(recipe: Recipe, registry: Registry) -> dict[str, dict[str, CellRequest]]:
    requests: dict[str, dict[str, CellRequest]] = {}
    for action in recipe.actions:
        if action.is_matrix:
            selection = selection_of(action, recipe, Selection())
            selection = replace(selection, trials=1, cell_trials=dict.fromkeys(selection.cell_trials, 1))
            try:
                specs = [trials[0] for trials in trials_of(entries_of(selection, registry), selection, registry)]
            except (PlanError, RegistryError) as error:
                raise recipe.error(action, f"action {action.name!r}: {error}") from None
            requests[action.name] = {
                spec.cell: CellRequest(
                    request_digest(spec), cell_value(spec), (identifier(spec.workload.name), identifier(spec.cell))
                )
                for spec in specs
            }
    return requests


def asked_of(action: Action, digests: Mapping[str, str]) -> str:
    """A digest of everything but the trials that the verdicts on an action depend on.

    More cells change the level of significance of each, so decisions on fewer cells do not hold for them.
    ``digests``: of the requests of its cells.
    """
    table = action.table
    asked = [sorted(digests.items()), table.baseline, table.margin, table.stop_after, *action.signatures]
    asked += [present(table.every).isoformat()] if table.every is not None else []
    return _hash(json.dumps(asked))


def request_digest(spec: TrialSpec) -> str:
    """The digest of a cell, from any of its trials."""
    given = (spec.mitigations, to_plain(dict(spec.overrides)), spec.steps, spec.execution.nproc, spec.execution.seed)
    return _digest(requested_parts(spec), *given)


def recorded_digest(record: Mapping[str, Any]) -> str | None:
    """The digest of the cell in a record's JSON; ``None`` if it has none."""
    request, parts = record.get("request"), record.get("fingerprint_parts")
    if not isinstance(request, Mapping) or not isinstance(parts, Mapping) or not parts:
        return None
    given = (request.get(name) for name in ("steps", "nproc", "run_seed"))
    config = decode_non_finite(request.get("config", {}))
    return _digest(decode_non_finite(dict(parts)), record.get("mitigations_applied"), config, *given)


def _digest(
    parts: Mapping[str, Any], mitigations: object, config: object, steps: object, nproc: object, seed: object
) -> str:
    requested = {name: parts[name] for name in REQUESTED if name in parts}
    given = {"mitigations": mitigations, "config": config, "steps": steps, "nproc": nproc, "seed": seed}
    return _hash(canonical_json(plain_data({**requested, **given})))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def trial_completion(record: Mapping[str, Any]) -> tuple[str, Any, RequestDigests] | None:
    """Unit, outcome and request in a record's JSON; ``None`` for other files."""
    cell, trial, status = (record.get(name) for name in ("cell", "trial_index", "exit_status"))
    if not isinstance(cell, str) or type(trial) is not int or not 0 <= trial < _MOST_TRIALS or status not in _STATUSES:
        return None
    # Digests of its source files, by absolute path. A record has those of the workload's own package relative to its
    # folder. Files that cannot be found, as those in a container, are left out: nothing can be said of them here.
    sources = {}
    status = "infrastructure_failed" if is_in_doubt(record) else status
    parts, request = record.get("fingerprint_parts"), record.get("request")
    if isinstance(parts, Mapping) and isinstance(request, Mapping):
        target, cwd = request.get("workload", {}).get("target", ""), str(request.get("cwd", ""))
        root = _source_root(target, cwd, tuple(request.get("sys_path", ())))
        for name, digest in {**parts.get("sources", {}), **parts.get("imported_later", {})}.items():
            path = os.path.join(root, name) if root is not None else name
            if os.path.isabs(path) and _is_file(path):
                sources[path] = digest
    return f"{cell}/{trial}", status, RequestDigests(digest=recorded_digest(record) or "", sources=sources)


_is_file = lru_cache(maxsize=2**16)(os.path.isfile)


@lru_cache(maxsize=1024)
def _source_root(target: str, cwd: str, sys_path: tuple[str, ...]) -> str | None:
    module = target.rpartition(":")[0]
    if module.endswith(".py"):
        return os.path.dirname(os.path.realpath(os.path.join(cwd, module)))
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        spec = module_spec(".".join(parts[:end]), [cwd, *sys_path])
        if spec is None:
            return None
        if spec.origin is not None:  # a namespace package has no file
            return os.path.dirname(os.path.realpath(spec.origin))
    return None


def since_of(action: Action, given: str) -> str:
    """The time from which trials of an action are kept: the start of this run (``given``), or of the present week."""
    every = action.table.every
    return max(given, present(every).isoformat(timespec="milliseconds") if every is not None else "")


def asked_of_plan(action: Action, plan: Plan) -> str:
    """The request that decisions on the cells of an action belong to."""
    return asked_of(action, {spec.cell: request_digest(spec) for spec in first_of_cells(plan)})


def first_of_cells(plan: Plan) -> list[TrialSpec]:
    return [spec for cells in plan.cells.values() for spec in cells.values()]
