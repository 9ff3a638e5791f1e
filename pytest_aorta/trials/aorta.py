"""What AORTA's base class declares beyond ours, and the options that its runner adds to a workload's own.

Here every trial has a process of its own, unless isolation is switched off. So a workload that supports AORTA's trial
isolation ``process`` finds what it finds in AORTA's isolated worker, and any other one what ``in_process`` offers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict

from pytest_aorta.trials.execution import LAUNCHER_OWNED
from pytest_aorta.trials.place_variables import TRIAL_DIR

TrialIsolation = Literal["process", "in_process"]

#: Beginning of the names of options that the runner adds.
RESERVED = "_aorta_"

_ISOLATIONS = ("in_process", "process")
_SCOPES = ("global", "rank_local")

_DECLARATIONS = (
    "distributed_result_scope",
    "isolated_distributed_backend",
    "isolated_startup_env",
    "trial_isolation_default",
    "trial_isolation_required",
    "trial_isolation_supported",
)


class EnvironmentData(TypedDict):
    """A ``registry.Environment``; of its variables, the names."""

    name: str
    docker: str | None
    venv: str | None
    rocm: str | None
    source_package: str
    env: list[str]


class DeclarationError(ValueError):
    """A workload declares something that AORTA does not know either."""


def is_aorta_workload(cls: type[Any]) -> bool:
    """Whether a class derives from one of AORTA's, or has one of its class attributes."""
    from_aorta = any(base.__module__.partition(".")[0] == "aorta" for base in cls.__mro__)
    return from_aorta or any(hasattr(cls, name) for name in _DECLARATIONS)


def supports_process(cls: type[Any]) -> bool:
    """Whether a workload supports AORTA's trial isolation ``process``."""
    return "process" in getattr(cls, "trial_isolation_supported", ())


def requires_process(cls: type[Any]) -> bool:
    """Whether a workload must not run in the process of its runner."""
    default = getattr(cls, "trial_isolation_default", "in_process")
    return bool(getattr(cls, "trial_isolation_required", False)) and default == "process"


def result_scope(cls: type[Any]) -> str:
    """``rank_local`` when a workload declares so, in our words (``result_scope``) or in AORTA's; else ``global``.

    Raises:
        DeclarationError: it is neither.
    """
    found = "global"
    for name in ("result_scope", "distributed_result_scope"):
        scope = getattr(cls, name, "global")
        if scope not in _SCOPES:
            raise DeclarationError(f"{cls.__name__}.{name} is {scope!r}; valid: {', '.join(_SCOPES)}")
        found = scope if scope != "global" else found
    return found


def check_isolation(cls: type[Any]) -> None:
    """Raise ``DeclarationError`` for a trial isolation that there is not."""
    supported = getattr(cls, "trial_isolation_supported", _ISOLATIONS[:1])
    default = getattr(cls, "trial_isolation_default", None)
    unknown = [mode for mode in (*supported, *([default] if default is not None else [])) if mode not in _ISOLATIONS]
    if unknown:
        raise DeclarationError(
            f"{cls.__name__} declares the trial isolation {unknown[0]!r}; valid: {', '.join(_ISOLATIONS)}"
        )


def startup_variables(cls: type[Any], options: Mapping[str, Any]) -> dict[str, str]:
    """Variables that a workload wants to have before its process starts, unless they are set already.

    Raises:
        DeclarationError: they are no texts, or belong to the launcher of the ranks.
    """
    declared = getattr(cls, "isolated_startup_env", None)
    found = {} if declared is None else declared(dict(options))
    if not isinstance(found, dict) or not all(isinstance(it, str) for pair in found.items() for it in pair):
        raise DeclarationError(f"{cls.__name__}.isolated_startup_env() has to return a dict of texts")
    owned = [name for name in found if LAUNCHER_OWNED.fullmatch(name)]
    if owned:
        raise DeclarationError(f"{cls.__name__}.isolated_startup_env(): {owned[0]} is set by the launcher of the ranks")
    return found


def added_options(
    trial_id: str, environment: EnvironmentData, overlay: Iterable[str], collect: list[str], isolation: TrialIsolation
) -> dict[str, Any]:
    """What AORTA's runner adds, in the process of a trial; ``overlay`` are the names of its variables."""
    variables = {name: os.environ[name] for name in overlay if name in os.environ}
    own = {name: variables[name] for name in environment["env"] if name in variables}
    added: dict[str, Any] = {
        "_aorta_environment": {**environment, "env": own},
        "_aorta_trial_env": variables,
        "_aorta_trial_isolation": isolation,
    }
    if collect:
        added["_aorta_collect"] = collect
    folder = os.environ.get(TRIAL_DIR)
    if folder is not None and os.environ.get("RANK", "0") == "0":
        stem = os.path.join(folder, "_".join(["trial", *trial_id.rsplit("_", 3)[1:]]))
        added |= {"_aorta_save_logs": True, "_aorta_log_prefix": stem}
        if collect:
            added["_aorta_collect_dir"] = stem
    return added


class Options(dict[str, Any]):
    """Options of a workload. What AORTA's runner adds can be looked up in it, but is not listed.

    So ``Model(**config)`` gets the options alone, and ``config["_aorta_trial_env"]`` is there.
    """

    def __init__(self, options: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._added = added

    def __missing__(self, key: str) -> Any:
        return self._added[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._added

    def get(self, key: str, default: Any = None) -> Any:
        """The value of an option, or of what was added."""
        return super().get(key, self._added.get(key, default))


def with_added(cls: type[Any], value: Any, added: Mapping[str, Any]) -> Any:
    """What the constructor of a workload receives; ``value`` are its options."""
    if not isinstance(value, dict):
        return value  # a typed Config has no place for them
    return {**value, **added} if is_aorta_workload(cls) else Options(value, added)
