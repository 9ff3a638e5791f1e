"""The process that a cell's trials run in: interpreter, launcher prefix, and the complete environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pytest_aorta.launch.trial_payload import PrepareArgument
from pytest_aorta.registry import Environment
from pytest_aorta.runtime.zygotes.zygote_spec import ZygoteSpec
from pytest_aorta.trials.place import TRIAL_DIR, TRIAL_INDEX
from pytest_aorta.trials.spec import TrialSpec

#: Variables that change from item to item.
_NOT_INHERITED = (
    *("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"),
    *(TRIAL_INDEX, TRIAL_DIR),  # of a trial that runs pytest
)


@dataclass(frozen=True)
class Inherited:
    """What a trial inherits of the process that asks for it, as of that moment.

    Attributes:
        variables: environment variables.
        cwd: working directory.
        sys_path: what to add to ``sys.path``, where the interpreter is the same.
    """

    variables: Mapping[str, str] = field(repr=False)  # some are secrets
    cwd: str
    sys_path: tuple[str, ...]

    @classmethod
    def now(cls) -> Inherited:
        """What this process has."""
        return cls(os.environ, os.getcwd(), tuple(path for path in sys.path if path))


class EnvironmentUnusable(Exception):
    """An environment names something that is not there."""


def command(environment: Environment) -> tuple[str, ...]:
    """Launcher prefix and interpreter.

    Raises:
        EnvironmentUnusable: the venv has no interpreter.
    """
    python = sys.executable
    if environment.venv is not None:
        candidate = Path(environment.venv).expanduser() / "bin" / "python"
        if not os.access(candidate, os.X_OK):
            raise EnvironmentUnusable(
                f"environment {environment.name!r} ({environment.source_package}): no interpreter at {candidate}; "
                f"create it with `python -m venv {environment.venv}` and install pytest-aorta there"
            )
        python = str(candidate.absolute())
    return (*environment.launcher, python)


def environ(
    environment: Environment,
    overlay: Mapping[str, str],
    base: Mapping[str, str],
    threads: Mapping[str, str],
    devices: Mapping[str, str],
) -> dict[str, str]:
    """The complete environment of a trial. Later ones win: ``threads``, ``base``, ``devices``, venv, ``overlay``."""
    variables = {name: value for name, value in base.items() if name not in _NOT_INHERITED}
    variables = {**threads, **variables, **devices}
    if environment.venv is not None:
        venv = Path(environment.venv).expanduser().absolute()
        variables["VIRTUAL_ENV"] = str(venv)
        variables["PATH"] = os.pathsep.join([str(venv / "bin"), variables.get("PATH", os.defpath)])
        variables.pop("PYTHONHOME", None)
    return {**variables, **overlay}


def zygote_spec(
    spec: TrialSpec,
    inherited: Inherited,
    threads: Mapping[str, str] = MappingProxyType({}),
    devices: Mapping[str, str] = MappingProxyType({}),
    fresh_seed: int | None = None,
) -> ZygoteSpec:
    """The zygote that a trial is forked from. Equal for the trials of a cell that have equal devices.

    Args:
        spec: the trial.
        inherited: what it has of the process that asks for it.
        threads: variables with the number of compute threads.
        devices: variables that select devices.
        fresh_seed: for a zygote that prepares the workload in its child, the seed of the trial.

    Raises:
        EnvironmentUnusable: the environment names something that is not there.
    """
    argument: PrepareArgument = {
        "target": spec.workload.target,
        "overrides": dict(spec.overrides),
        "steps": spec.steps,
        "launcher": spec.execution.launcher,
        "seed": fresh_seed,
    }
    return ZygoteSpec(
        command=command(spec.environment),
        environ=environ(spec.environment, spec.overlay, inherited.variables, threads, devices),
        prepare="pytest_aorta.launch.child.trial_main:prepare",
        argument=argument,
        run="pytest_aorta.launch.child.trial_main:run",
        sys_path=() if spec.environment.venv is not None else inherited.sys_path,
        cwd=inherited.cwd,
        fresh=fresh_seed is not None,
        warm_up="pytest_aorta.launch.child.workload_main:warm_up",
    )
