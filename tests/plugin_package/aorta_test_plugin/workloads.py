"""Workloads that know the contract (``setup``, ``run``, perhaps ``cleanup``) and nothing else of pytest-aorta."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class EchoResult:
    """The least that a result can be: ``passed``, and here ``metrics``."""

    passed: bool
    metrics: dict[str, Any] = field(default_factory=dict)


class Echo:
    """Passes, and reports its config and the variable ``PLUGIN_MODE`` as its own process sees them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.ready = False

    def setup(self) -> None:
        self.ready = True

    def run(self) -> EchoResult:
        return EchoResult(passed=self.ready, metrics=_seen(self.config))


@dataclass
class LegacyResult:
    """Every field that AORTA's own result has, in a class that is not AORTA's."""

    passed: bool
    failure_count: int
    first_failure_iteration: int | None
    failure_details: list[dict[str, Any]]
    total_iterations: int
    step_times_ms: list[float]
    elapsed_sec: float
    metrics: dict[str, Any]
    main_work_started: bool | None
    executed_iterations: int | None
    configured_iterations: int | None


class Legacy:
    """Counts ``config["steps"]`` (default 3) iterations and fails at ``config["fail_at"]``, if that is given.

    ``cleanup()`` writes the number of iterations to the file ``config["cleanup_file"]``, if that is given.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.iterations = 0

    def setup(self) -> None:
        self.iterations = 0

    def run(self) -> LegacyResult:
        steps = int(self.config.get("steps", 3))
        fail_at = self.config.get("fail_at")
        failures = [{"iteration": step} for step in range(steps) if step == fail_at]
        self.iterations = steps
        return LegacyResult(
            passed=not failures,
            failure_count=len(failures),
            first_failure_iteration=fail_at if failures else None,
            failure_details=failures,
            total_iterations=steps,
            step_times_ms=[1.0] * steps,
            elapsed_sec=steps / 1000,
            metrics=_seen(self.config),
            main_work_started=True,
            executed_iterations=steps,
            configured_iterations=steps,
        )

    def cleanup(self) -> None:
        if "cleanup_file" in self.config:
            Path(self.config["cleanup_file"]).write_text(str(self.iterations))


def _seen(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"config": dict(config), "PLUGIN_MODE": os.environ.get("PLUGIN_MODE")}
