"""The process that a cell's trials run in: interpreter, launcher prefix, and the complete environment."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pytest_aorta.launch.containers import (
    PACKAGES,
    Caller,
    candidates,
    choose_engine,
    mounts,
    run_command,
    stop_command,
)
from pytest_aorta.launch.trial_payload import PrepareArgument
from pytest_aorta.registry import Environment
from pytest_aorta.registry.payloads import ENGINES
from pytest_aorta.runtime.zygote import Behind, ZygoteSpec
from pytest_aorta.trials.execution import TRIAL_DIR, TRIAL_INDEX, TRIAL_SEED
from pytest_aorta.trials.spec import Origin, TrialSpec

#: Variables that change from item to item.
_NOT_INHERITED = (
    *("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"),
    *(TRIAL_INDEX, TRIAL_DIR, TRIAL_SEED),  # of a trial that runs pytest
)


@dataclass(frozen=True)
class Inherited:
    """What a trial inherits of the process that asks for it, as of that moment.

    Attributes:
        variables: environment variables.
        cwd: working directory.
        sys_path: what to add to ``sys.path``, where the interpreter is the same.
        results: the folder that its files are written to.
    """

    variables: Mapping[str, str] = field(repr=False)  # some are secrets
    cwd: str
    sys_path: tuple[str, ...]
    results: str | None = None

    @classmethod
    def now(cls, results: Path | None = None, origin: Origin | None = None) -> Inherited:
        """What this process has; folders are those of the ``origin``, if there is one."""
        folder = None if results is None else str(results.absolute())
        if origin is not None:
            return cls(os.environ, origin.cwd, origin.sys_path, folder)
        return cls(os.environ, os.getcwd(), tuple(path for path in sys.path if path), folder)


class EnvironmentUnusable(Exception):
    """An environment names something that is not there."""


def command(environment: Environment) -> tuple[str, ...]:
    """Launcher prefix and interpreter.

    Raises:
        EnvironmentUnusable: the venv has no interpreter.
    """
    python = interpreter(environment)
    if environment.venv is not None and not os.access(python, os.X_OK):
        raise EnvironmentUnusable(
            f"environment {environment.name!r} ({environment.source_package}): no interpreter at {python}; "
            f"create it with `python -m venv {environment.venv}` and install pytest-aorta there"
        )
    return (*environment.launcher, python)


def interpreter(environment: Environment) -> str:
    """The path of the interpreter, which need not be there."""
    if environment.enter and environment.venv is None:
        return "python3"  # of the image
    if environment.venv is None:
        return sys.executable
    return str((Path(environment.venv).expanduser() / "bin" / "python").absolute())


def environ(
    environment: Environment,
    overlay: Mapping[str, str],
    base: Mapping[str, str],
    threads: Mapping[str, str],
    devices: Mapping[str, str],
) -> dict[str, str]:
    """The complete environment of a trial. Later ones win: ``threads``, ``base``, ``devices``, venv, ``overlay``."""
    variables = {**threads, **_passed_on(base), **devices}
    if environment.venv is not None:
        venv = Path(environment.venv).expanduser().absolute()
        variables["VIRTUAL_ENV"] = str(venv)
        variables["PATH"] = os.pathsep.join([str(venv / "bin"), variables.get("PATH", os.defpath)])
        variables.pop("PYTHONHOME", None)
    return {**variables, **overlay}


def _passed_on(base: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in base.items() if name not in _NOT_INHERITED}


def container_command(
    spec: TrialSpec, inherited: Inherited, imposed: Mapping[str, str]
) -> tuple[tuple[str, ...], Behind]:
    """The command that enters an environment's image, and what to know of it.

    The container has its image's variables and the ``imposed`` ones, and nothing else of this process.

    Raises:
        EnvironmentUnusable: there is no engine for it.
    """
    environment = spec.environment
    found = choose_engine(environment, lambda name: shutil.which(name, path=inherited.variables.get("PATH")))
    if environment.docker is None or found is None:
        raise EnvironmentUnusable(
            f"environment {environment.name!r} ({environment.source_package}) is to be entered, but "
            f"{' or '.join(candidates(environment))} is not on PATH; the field 'enter' may name another engine: "
            f"{', '.join(ENGINES)}"
        )
    # The socket of its start and what else is private to a trial lie in the temporary directory, or in /tmp.
    folders = [inherited.cwd, *_sources(inherited.sys_path), tempfile.gettempdir(), "/tmp"]
    if inherited.results is not None:
        os.makedirs(inherited.results, exist_ok=True)
        folders.append(inherited.results)
    file = spec.workload.target.rpartition(":")[0]
    if file.endswith(".py"):
        folder = Path(file).parent
        while (folder / "__init__.py").is_file():  # it is imported by its dotted name
            folder = folder.parent
        folders.append(str(folder))
    prefix = run_command(
        *found,
        environment.docker,
        mounts=mounts(folders, _packages()),
        cwd=inherited.cwd,
        caller=Caller.here(),
        options=environment.engine_options,
    )
    python = "python3" if environment.venv is None else str(Path(environment.venv).expanduser() / "bin" / "python")
    venv = {} if environment.venv is None else {"VIRTUAL_ENV": environment.venv}
    behind = Behind({**venv, **imposed}, packages=PACKAGES, stop=stop_command(*found))
    return (*prefix, *environment.launcher, python), behind


def _sources(sys_path: Sequence[str]) -> tuple[str, ...]:
    """The entries of ``sys.path`` that belong to no installation: what a project has put there."""
    installed = [Path(prefix) for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}]
    return tuple(
        path
        for path in sys_path
        if os.path.isdir(path)
        and not any(Path(path).is_relative_to(prefix) for prefix in installed)
        and not {"site-packages", "dist-packages"} & set(Path(path).parts)
    )


@functools.cache
def _packages() -> Mapping[str, str]:
    """The packages of this distribution, and where they are; an editable install may have them anywhere."""
    found = {name: importlib.util.find_spec(name) for name in ("pytest_aorta", "aorta_workloads")}
    return {
        name: spec.submodule_search_locations[0]
        for name, spec in found.items()
        if spec is not None and spec.submodule_search_locations
    }


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
    environment = spec.environment
    argument: PrepareArgument = {
        "target": spec.workload.target,
        "overrides": dict(spec.overrides),
        "steps": spec.steps,
        "launcher": spec.execution.launcher,
        "seed": fresh_seed,
        "preload": [] if fresh_seed is not None else list(spec.execution.preloaded),
        "watches": fresh_seed is None and bool(spec.all_watched),
    }
    imposed = {**threads, **devices, **spec.overlay}
    if environment.enter:
        words, behind = container_command(spec, inherited, imposed)
        variables = _passed_on(inherited.variables)  # for the engine itself
        sys_path = _sources(inherited.sys_path)
    else:
        words = command(environment)
        variables = environ(environment, spec.overlay, inherited.variables, threads, devices)
        own = imposed if environment.venv is None else {*imposed, "VIRTUAL_ENV"}
        behind = Behind({name: variables[name] for name in own})
        sys_path = () if environment.venv is not None else inherited.sys_path
    return ZygoteSpec(
        command=words,
        environ=variables,
        prepare="pytest_aorta.launch.child.trial_main:prepare",
        argument=argument,
        run="pytest_aorta.launch.child.trial_main:run",
        sys_path=sys_path,
        cwd=inherited.cwd,
        fresh=fresh_seed is not None,
        extend="pytest_aorta.launch.child.workload_main:extend",
        load="pytest_aorta.launch.child.trial_main:load",
        orphaned="pytest_aorta.launch.child.trial_main:orphaned",
        behind=behind,
    )
