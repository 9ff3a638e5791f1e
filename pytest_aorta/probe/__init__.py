"""What a trial ran on: the host, the interpreter, torch, the accelerator, the packages, the variables that matter.

``collect_static()`` is taken once per zygote, ``collect_env(static)`` once per trial in its own process before the
workload's code, ``collect_end(static)`` after its ``run()``. None of them raises, computes on a GPU, creates a GPU
context or uses the network; what could not be found out is named in ``partial_reasons``. The names below are loaded on
first use: importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aorta.probe.collect import collect_end, collect_env, collect_static
    from pytest_aorta.probe.packages import package_list, write_package_list
    from pytest_aorta.probe.snapshot import EndSnapshot, EnvSnapshot
    from pytest_aorta.probe.static import StaticEnv
    from pytest_aorta.probe.variables import recorded_variables

_HOMES = {
    "EndSnapshot": "pytest_aorta.probe.snapshot",
    "EnvSnapshot": "pytest_aorta.probe.snapshot",
    "StaticEnv": "pytest_aorta.probe.static",
    "collect_end": "pytest_aorta.probe.collect",
    "collect_env": "pytest_aorta.probe.collect",
    "collect_static": "pytest_aorta.probe.collect",
    "package_list": "pytest_aorta.probe.packages",
    "recorded_variables": "pytest_aorta.probe.variables",
    "write_package_list": "pytest_aorta.probe.packages",
}

__all__ = [
    "EndSnapshot",
    "EnvSnapshot",
    "StaticEnv",
    "collect_end",
    "collect_env",
    "collect_static",
    "package_list",
    "recorded_variables",
    "write_package_list",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
