"""What is known of a workload once its cell has been prepared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pytest_aorta.launch.launch_mode import LaunchPlan
from pytest_aorta.trials.result import ENCODED, Free
from pytest_aorta.trials.spec import TrialSpec


class WorkloadInfo(BaseModel):
    """The description of a workload, from a process that has imported it; see ``trials.loading.describe``."""

    model_config = ConfigDict(frozen=True)

    launch_mode: str
    min_world_size: int
    result_scope: str
    timeout_sec: float | None
    source: str | None
    source_digest: str
    config: Free
    config_error: str | None = None
    config_warnings: list[str] = []
    startup_variables: dict[str, str] = Field(default={}, repr=False)  # may be secrets
    requires_process: bool = False
    packages: dict[str, Any] | None = None


@dataclass(frozen=True)
class PreparedCell:
    """A workload with the options of a cell, and how a trial of the cell starts."""

    info: WorkloadInfo
    plan: LaunchPlan

    def fingerprint(self, spec: TrialSpec) -> str:
        """The ``request_fingerprint`` of a trial's record."""
        return spec.fingerprint(self.info.source_digest, self.info.config, self.plan.nproc)

    def to_plain(self) -> dict[str, Any]:
        """JSON values, for another host."""
        return {"info": self.info.model_dump(mode="json"), "plan": asdict(self.plan)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> PreparedCell:
        """The inverse of ``to_plain``."""
        return cls(WorkloadInfo.model_validate(plain["info"], context=ENCODED), LaunchPlan(**plain["plan"]))
