"""What is known of a workload once its cell has been prepared."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pytest_aorta.launch.launch_mode import LaunchPlan
from pytest_aorta.launch.nodes import is_multi_node
from pytest_aorta.trials.loading import file_digest
from pytest_aorta.trials.records import Free
from pytest_aorta.trials.spec import ImposedCounts, Ingredients, Parts, TrialSpec, fingerprint_parts


class WorkloadInfo(BaseModel):
    """The description of a workload, from a process that has imported it; see ``trials.loading.describe``."""

    model_config = ConfigDict(frozen=True)

    launch_mode: str
    min_world_size: int
    result_scope: str
    timeout_sec: float | None
    source: str | None
    source_root: str | None = None
    sources: dict[str, str] = {}
    data_files: dict[str, str | None] = {}
    surroundings: dict[str, Any] = {}
    config: Free
    config_error: str | None = None
    config_warnings: list[str] = []
    startup_variables: dict[str, str] = Field(default={}, repr=False)  # may be secrets
    requires_process: bool = False
    packages: dict[str, Any] | None = None

    def without_variables(self, names: Collection[str]) -> WorkloadInfo:
        """As this, without some of the variables of the surroundings."""
        variables = self.surroundings.get("variables", {})
        kept = {name: value for name, value in variables.items() if name not in names}
        return self.model_copy(update={"surroundings": {**self.surroundings, "variables": kept}})

    def digests_now(self, paths: Iterable[str]) -> dict[str, str]:
        """Digests of those source files that are there now; paths as of ``trials.sources``."""
        root = Path(self.source_root or "/")
        return {path: digest for path in paths if (digest := file_digest(root / path)) is not None}


@dataclass(frozen=True)
class PreparedCell:
    """A workload with the options of a cell, how a trial of the cell starts, and what the run changes for it."""

    info: WorkloadInfo
    plan: LaunchPlan
    imposes: ImposedCounts = field(default_factory=ImposedCounts)

    def request(self, spec: TrialSpec) -> Parts:
        """All that the request of a trial of this cell is made of."""
        info = self.info
        ingredients = Ingredients(info.config, info.sources, info.data_files, info.surroundings)
        together = self.plan.mode == "external" or is_multi_node(spec.execution.elastic)
        return fingerprint_parts(spec, ingredients, self.plan.nproc, self.imposes, together=together)
