"""The request for one trial: everything resolved from names to values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_aorta.registry import Environment, WorkloadEntry
from pytest_aorta.trials.conversion import canonical_json
from pytest_aorta.trials.elastic_options import DEFAULTS, ElasticOptions
from pytest_aorta.trials.names import identifier

Isolation = Literal["fork", "spawn", "none"]
Launcher = Literal["auto", "elastic", "torchrun", "external"]

#: Seconds between SIGTERM and SIGKILL for a trial whose deadline has passed.
GRACE = 5.0

#: Bytes that are kept of each of a trial's logs.
LOG_LIMIT = 2**26


#: Options of the agent that say where trials run, and not how.
_PLACES = ("node_rank", "rdzv_endpoint", "rdzv_id")


@dataclass(frozen=True)
class TrialSpec:
    """One trial of one cell.

    Attributes:
        workload: what to run.
        environment: where.
        mitigations: names of the mitigation set, in order.
        overlay: the variables of environment, mitigations and extra variables, later ones winning.
        environment_index: position of the environment in the plan.
        mitigation_index: position of the mitigation set in the plan.
        trial_index: 0..N-1.
        overrides: options for the workload, values as given (text from a command line, anything from Python).
        steps: number of steps, ``None`` for the workload's own default.
        timeout: deadline in seconds, ``None`` for the workload's own.
        stall_timeout: seconds without progress in ``setup()`` or ``run()`` after which the trial is ended.
        memory: bytes that each of its processes may allocate.
        log_limit: bytes that are kept of each of its logs.
        isolation: how the trial's process comes to be.
        launcher: who starts the ranks of a distributed workload.
        nproc: number of ranks, ``None`` for the workload's minimum.
        elastic: options of the agent that starts the ranks.
        collect: names of collectors.
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
    timeout: float | None = None
    stall_timeout: float | None = None
    memory: int | None = None
    log_limit: int = LOG_LIMIT
    isolation: Isolation = "fork"
    launcher: Launcher = "auto"
    nproc: int | None = None
    elastic: ElasticOptions = DEFAULTS
    collect: tuple[str, ...] = ()

    @property
    def trial_id(self) -> str:
        """Unique in a plan."""
        return f"{self.workload.name}_d{self.environment_index}_m{self.mitigation_index}_t{self.trial_index}"

    @property
    def cell(self) -> str:
        """Environment and mitigation set, as in item names and folders."""
        return f"{identifier(self.environment.name)}-{'+'.join(identifier(name) for name in self.mitigations)}"

    @property
    def item_name(self) -> str:
        """The pytest item's name, for instance ``fsdp[local-tf32_off+xnack-3]``."""
        return f"{identifier(self.workload.name)}[{self.cell}-{self.trial_index}]"

    def fingerprint(self, source_digest: str, config: Mapping[str, Any], nproc: int) -> str:
        """Digest of what decides a trial's outcome: the workload's source, options, environment, variables, ranks."""
        environment = self.environment
        request: dict[str, Any] = {
            "workload": [self.workload.name, source_digest],
            "config": dict(config),
            "environment": [
                environment.name,
                environment.docker,
                environment.venv,
                environment.rocm,
                list(environment.launcher),
            ],
            "mitigations": list(self.mitigations),
            "variables": dict(self.overlay),
            "ranks": [self.launcher, nproc],
            "isolation": self.isolation,
            "trial": self.trial_index,
        }
        if self.elastic != DEFAULTS:
            request["elastic"] = {**self.elastic.to_plain(), **dict.fromkeys(_PLACES)}
        if self.memory is not None:
            request["memory"] = self.memory
        return hashlib.sha256(canonical_json(request).encode()).hexdigest()
