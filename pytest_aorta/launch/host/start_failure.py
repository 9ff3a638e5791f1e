"""Why the trials of a cell cannot start."""

from __future__ import annotations

from pathlib import Path

from pytest_aorta.launch.diagnosis.traces import ImportHang
from pytest_aorta.launch.environment import EnvironmentUnusable
from pytest_aorta.launch.host.allocation import DevicesQuarantined
from pytest_aorta.launch.launch_mode import LaunchModeError
from pytest_aorta.runtime.zygote import ZygoteError, ZygoteTimeout
from pytest_aorta.trials.config import ConfigError
from pytest_aorta.trials.outcome import Observed, exit_failure

#: What prevents every trial of a cell: it is in the record of each.
START_FAILURES = (ZygoteError, EnvironmentUnusable, ConfigError, LaunchModeError, DevicesQuarantined)


def see_start_failure(seen: Observed, error: Exception, target: str, folder: Path | None) -> None:
    """Note why a trial of ``target`` could not start; stacks of an import that hung go into its ``folder``."""
    if isinstance(error, ZygoteTimeout):
        ImportHang(error.limit, error.stacks, error.output).see(seen, target, folder)
        return
    lost = error if isinstance(error, ZygoteError) else ZygoteError(str(error))
    seen.phase = lost.phase
    seen.lost = exit_failure(lost.phase, lost.returncode, lost.error or {"message": str(lost)})
