"""What preparing a cell has told of its workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_aorta.trials.spec import TrialSpec


@dataclass(frozen=True)
class Checked:
    """What a trial's fingerprint takes from its workload: digest of the source, resolved options, number of ranks."""

    source_digest: str
    config: Mapping[str, Any]
    nproc: int

    def fingerprint(self, spec: TrialSpec) -> str:
        """The ``request_fingerprint`` that the record of a trial would have."""
        return spec.fingerprint(self.source_digest, self.config, self.nproc)
