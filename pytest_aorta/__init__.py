"""A trial of a workload is a pytest item; a triage is a pytest run.

The names below are loaded on first use, so that importing this package (pytest does, at every start) costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aorta._version import __version__ as __version__
    from pytest_aorta.api import RunRequest as RunRequest
    from pytest_aorta.api import run_trials as run_trials
    from pytest_aorta.plugin.torchrun_fixture import TorchrunResult as TorchrunResult
    from pytest_aorta.probe.collect import EnvSnapshot as EnvSnapshot
    from pytest_aorta.probe.collect import collect_env as collect_env
    from pytest_aorta.settings import RequestError as RequestError
    from pytest_aorta.triage import ReportSection as ReportSection
    from pytest_aorta.trials.execution import ElasticOptions as ElasticOptions
    from pytest_aorta.trials.execution import Execution as Execution
    from pytest_aorta.trials.execution import Limits as Limits
    from pytest_aorta.trials.execution import Resources as Resources
    from pytest_aorta.trials.result import Judgement as Judgement
    from pytest_aorta.trials.result import TrialResult as TrialResult
    from pytest_aorta.trials.workload import Workload as Workload
    from pytest_aorta.trials.workload import WorkloadResult as WorkloadResult

#: The module of each public name.
_HOMES = {
    "ElasticOptions": "trials.execution",
    "EnvSnapshot": "probe.collect",
    "Execution": "trials.execution",
    "Judgement": "trials.result",
    "Limits": "trials.execution",
    "ReportSection": "triage",
    "RequestError": "settings",
    "Resources": "trials.execution",
    "RunRequest": "api",
    "TorchrunResult": "plugin.torchrun_fixture",
    "TrialResult": "trials.result",
    "Workload": "trials.workload",
    "WorkloadResult": "trials.workload",
    "__version__": "_version",
    "collect_env": "probe.collect",
    "run_trials": "api",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
