"""The request for one trial: everything resolved from names to values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.texts import identifier
from pytest_aorta.trials.execution import Execution, Limits, Resources
from pytest_aorta.trials.seeding import derived_seed

if TYPE_CHECKING:  # not in the processes of trials
    from pytest_aorta.registry import Environment, WorkloadEntry


@dataclass(frozen=True)
class Origin:
    """What a replayed trial has of its record, one of a recipe of its folder, and any other of the process that asks.

    Attributes:
        seed: of the trial; ``None`` for one from the operating system.
        cwd: working directory.
        sys_path: what to add to ``sys.path``.
        rank_seed: of this rank, where pytest is a rank itself: each has drawn one of its own.
    """

    seed: int | None
    cwd: str
    sys_path: tuple[str, ...]
    rank_seed: int | None = None


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
        execution: how its processes are started.
        limits: of time, memory and logs.
        collect: names of collectors, with options; with ``divergence``, all trials have the same seed.
        resources: of the run.
        watched: names of the variables that any cell of the plan sets.
        origin: of a replayed trial, or of one in another folder than that of pytest.
        order: how the trials of its plan were put in order, and by which seed; empty for one that is in no plan.
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

    @property
    def seed(self) -> int | None:
        if any(text.partition(":")[0] == "divergence" for text in self.collect):  # it compares what should be equal
            return derived_seed(self.execution.seed or 0, "trial", 0)
        return None if self.execution.seed is None else derived_seed(self.execution.seed, "trial", self.trial_index)

    @property
    def given_seed(self) -> int | None:
        """The seed as requested, else that of the record that is replayed."""
        return self.origin.seed if self.seed is None and self.origin is not None else self.seed

    @property
    def all_watched(self) -> list[str]:
        """The variables that are recorded whatever they are called, sorted."""
        return sorted({*self.watched, *self.overlay})

    @property
    def trial_id(self) -> str:
        return f"{self.workload.name}_d{self.environment_index}_m{self.mitigation_index}_t{self.trial_index}"

    @property
    def environment_data(self) -> dict[str, Any]:
        """The environment as JSON values, for workloads that look at it; of its variables, the names."""
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
    return f"{identifier(environment)}-{'+'.join(map(identifier, mitigations))}"
