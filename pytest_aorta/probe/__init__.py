"""What a trial ran on: the host, the interpreter, torch, the accelerator, the packages, the variables that matter.

``collect_static()`` is taken once per zygote, ``collect_env(static)`` once per trial in its own process. Neither
raises, computes on a GPU, creates a GPU context or uses the network; what could not be found out is named in
``partial_reasons``. The names below are loaded on first use: importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aorta.probe.collect import collect_env, collect_static
    from pytest_aorta.probe.snapshot import EnvSnapshot
    from pytest_aorta.probe.static import StaticEnv
    from pytest_aorta.probe.variables import recorded_variables

_HOMES = {
    "EnvSnapshot": "pytest_aorta.probe.snapshot",
    "StaticEnv": "pytest_aorta.probe.static",
    "collect_env": "pytest_aorta.probe.collect",
    "collect_static": "pytest_aorta.probe.collect",
    "recorded_variables": "pytest_aorta.probe.variables",
}

__all__ = ["EnvSnapshot", "StaticEnv", "collect_env", "collect_static", "recorded_variables"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
