"""Variables that tell a command what it is run for; names and meanings are Row's."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

from pytest_aorta.workflow.resources import Resources


def action_variables(
    action: str, resources: Resources, directories: int, workspace: Path, cluster: str
) -> dict[str, str]:
    """The variables of a job over so many directories; those of what it does not ask for are left out."""
    minutes = math.ceil(resources.total_walltime(directories) / timedelta(minutes=1))
    found: dict[str, int | str | None] = {
        "ACTION_CLUSTER": cluster,
        "ACTION_NAME": action,
        "ACTION_WORKSPACE_PATH": str(workspace),
        "ACTION_PROCESSES": resources.total_processes(directories),
        "ACTION_WALLTIME_IN_MINUTES": minutes,
        "ACTION_PROCESSES_PER_DIRECTORY": resources.processes.per_directory if resources.processes else None,
        "ACTION_THREADS_PER_PROCESS": resources.threads_per_process,
        "ACTION_GPUS_PER_PROCESS": resources.gpus_per_process,
    }
    return {name: str(value) for name, value in found.items() if value is not None}
