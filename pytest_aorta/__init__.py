"""A trial of a workload is a pytest item; a triage is a pytest run.

The names below are loaded on first use, so that importing this package (pytest does, at every start) costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pytest_aorta._version import __version__

if TYPE_CHECKING:
    from pytest_aorta.api import RunRequest, run_trials
    from pytest_aorta.plugin.torchrun_result import TorchrunResult
    from pytest_aorta.probe import EnvSnapshot, collect_env
    from pytest_aorta.trials.elastic_options import ElasticOptions
    from pytest_aorta.trials.execution import Execution, Resources
    from pytest_aorta.trials.limits import Limits
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.workload import Workload, WorkloadResult

_HOMES = {
    "ElasticOptions": "pytest_aorta.trials.elastic_options",
    "EnvSnapshot": "pytest_aorta.probe",
    "Execution": "pytest_aorta.trials.execution",
    "Limits": "pytest_aorta.trials.limits",
    "Resources": "pytest_aorta.trials.execution",
    "RunRequest": "pytest_aorta.api",
    "TorchrunResult": "pytest_aorta.plugin.torchrun_result",
    "TrialResult": "pytest_aorta.trials.result",
    "Workload": "pytest_aorta.trials.workload",
    "WorkloadResult": "pytest_aorta.trials.workload",
    "collect_env": "pytest_aorta.probe",
    "run_trials": "pytest_aorta.api",
}

__all__ = [
    "ElasticOptions",
    "EnvSnapshot",
    "Execution",
    "Limits",
    "Resources",
    "RunRequest",
    "TorchrunResult",
    "TrialResult",
    "Workload",
    "WorkloadResult",
    "__version__",
    "collect_env",
    "run_trials",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
