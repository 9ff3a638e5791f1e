"""Interpreter, launcher prefix and variables of a cell's trials, and the description of their workload."""

from __future__ import annotations

import csv
import functools
import importlib.util
import io
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from pytest_aorta.launch.inline import make
from pytest_aorta.launch.launch_mode import AS_TYPED, LaunchPlan, WorkloadArgument, is_multi_node
from pytest_aorta.registry import ENGINES, Engine, Environment
from pytest_aorta.runtime.zygote import TAG_WORD, PrefixFacts, ZygoteSpec
from pytest_aorta.trials.command_line import COMMAND_TARGET
from pytest_aorta.trials.execution import FINITE, TRIAL, TRIAL_DIR, TRIAL_INDEX, TRIAL_SEED
from pytest_aorta.trials.loading import file_digest
from pytest_aorta.trials.records import Free
from pytest_aorta.trials.spec import ImposedCounts, Origin, Parts, TrialSpec, fingerprint_parts

#: Where a container has the packages of this distribution; their dependencies must be in the image.
PACKAGES = "/opt/pytest-aorta"

#: Name of the container of a zygote.
CONTAINER = f"pytest-aorta-{TAG_WORD}"

Gpu = Literal["nvidia", "amd"]


class Mount(NamedTuple):
    source: str
    target: str
    mode: Literal["rw", "ro"] = "rw"


@dataclass(frozen=True)
class Caller:
    uid: int
    gid: int
    name: str
    gpu: Gpu | None = None
    gpu_groups: tuple[int, ...] = ()

    @classmethod
    def here(cls, root: Path = Path("/")) -> Caller:
        uid = os.getuid()
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        if (root / "dev/kfd").exists():
            files = [root / "dev/kfd", *sorted((root / "dev/dri").glob("render*"))]
            return cls(uid, os.getgid(), name, "amd", tuple(sorted({file.stat().st_gid for file in files})))
        return cls(uid, os.getgid(), name, "nvidia" if (root / "dev/nvidiactl").exists() else None)


def candidates(environment: Environment) -> tuple[Engine, ...]:
    """Engines that could start the environment's image, first choice first."""
    return (environment.enter,) if isinstance(environment.enter, str) else ENGINES


def choose_engine(
    environment: Environment, which: Callable[[str], str | None] = shutil.which
) -> tuple[Engine, str] | None:
    """The engine to start, with its path; ``None`` where there is none."""
    paths = ((engine, which(engine)) for engine in candidates(environment))
    return next(((engine, path) for engine, path in paths if path is not None), None)


def mounts(folders: Iterable[str], packages: Mapping[str, str]) -> list[Mount]:
    """Mounts for all folders that lie in no other one and are not ``/``, then for the ``packages``."""
    kept: list[Mount] = []
    for folder in sorted({os.path.abspath(folder) for folder in folders} - {"/"}):
        if not any(PurePosixPath(folder).is_relative_to(other.source) for other in kept):
            kept.append(Mount(folder, folder))
    return [*kept, *(Mount(folder, f"{PACKAGES}/{name}", "ro") for name, folder in packages.items())]


def run_command(
    engine: Engine,
    program: str,
    image: str,
    *,
    mounts: Sequence[Mount],
    cwd: str,
    caller: Caller,
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """The command line prefix that runs a command in a container of the image.

    The container's name is the tag of the zygote. It shares the GPUs, the network and the shared memory of this host,
    which ranks and loaders need. The image must be on this host: trials download nothing.
    """
    words = ["run", "--rm", f"--name={CONTAINER}", "--pull=never", "--network=host", "--ipc=host"]
    words += [f"--user={caller.uid}:{caller.gid}", "--security-opt=label=disable", f"--workdir={cwd}"]
    rootless = engine == "podman" and caller.uid != 0
    words += ["--userns=keep-id"] if rootless else []
    if caller.uid != 0:
        # Libraries read these before they look for a user, which the image does not have.
        words += ["--env=HOME=/tmp", f"--env=USER={caller.name}", f"--env=LOGNAME={caller.name}"]
    if caller.gpu == "nvidia":
        words.append("--gpus=all" if engine == "docker" else "--device=nvidia.com/gpu=all")
    if caller.gpu == "amd":
        words += ["--device=/dev/kfd", "--device=/dev/dri", "--security-opt=seccomp=unconfined"]
        groups = ["keep-groups"] if rootless else caller.gpu_groups
        words += [f"--group-add={group}" for group in groups]
    for source, target, mode in mounts:
        fields = io.StringIO()
        read_only = ["readonly"] if mode == "ro" else []
        csv.writer(fields).writerow(["type=bind", f"source={source}", f"target={target}", *read_only])
        words.append(f"--mount={fields.getvalue().rstrip()}")
    return (program, *words, *options, image)


#: Variables that change from item to item.
_NOT_INHERITED = (
    *("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"),
    *(TRIAL_INDEX, TRIAL, TRIAL_DIR, TRIAL_SEED, FINITE),  # of a trial that runs pytest
)


@dataclass(frozen=True)
class Inherited:
    """What a trial inherits from the process that asks for it, at that moment."""

    variables: Mapping[str, str] = field(repr=False)  # some are secrets
    cwd: str
    sys_path: tuple[str, ...]
    results: str | None = None

    @classmethod
    def now(cls, results: Path | None = None, origin: Origin | None = None) -> Inherited:
        """Take variables from this process, and folders from the ``origin``, or from this process if there is none."""
        folder = None if results is None else str(results.absolute())
        if origin is not None:
            return cls(os.environ, origin.cwd, origin.sys_path, folder)
        return cls(os.environ, os.getcwd(), tuple(filter(None, sys.path)), folder)


class EnvironmentUnusable(Exception):
    """An environment names something that is not there."""


def interpreter(environment: Environment) -> str:
    """Path of the interpreter, which may not exist."""
    if environment.enter and environment.venv is None:
        return "python3"  # of the image
    if environment.venv is None:
        return sys.executable
    return str((Path(environment.venv).expanduser() / "bin" / "python").absolute())


def container_command(
    spec: TrialSpec, inherited: Inherited, imposed: Mapping[str, str]
) -> tuple[tuple[str, ...], PrefixFacts]:
    """The command that enters an environment's image, and how zygotes behind it are restored and stopped.

    The container has the variables of its image and the ``imposed`` ones, and no others of this process.
    """
    environment = spec.environment
    chosen = choose_engine(environment, lambda name: shutil.which(name, path=inherited.variables.get("PATH")))
    if environment.docker is None or chosen is None:
        raise EnvironmentUnusable(
            f"environment {environment.name!r} ({environment.source_package}) is to be entered, but "
            f"{' or '.join(candidates(environment))} is not on PATH; other engines are launcher prefixes"
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
        *chosen,
        environment.docker,
        mounts=mounts(folders, _packages()),
        cwd=inherited.cwd,
        caller=Caller.here(),
        options=environment.engine_options,
    )
    python = "python3" if environment.venv is None else str(Path(environment.venv).expanduser() / "bin" / "python")
    venv = {} if environment.venv is None else {"VIRTUAL_ENV": environment.venv}
    behind = PrefixFacts({**venv, **imposed}, packages=PACKAGES, stop=(chosen[1], "kill", CONTAINER))
    return (*prefix, *environment.launcher, python), behind


def _sources(sys_path: Sequence[str]) -> tuple[str, ...]:
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
    specs = {name: importlib.util.find_spec(name) for name in ("pytest_aorta", "aorta_workloads")}
    return {
        name: spec.submodule_search_locations[0]
        for name, spec in specs.items()
        if spec is not None and spec.submodule_search_locations
    }


def zygote_spec(
    spec: TrialSpec,
    inherited: Inherited,
    threads: Mapping[str, str] = MappingProxyType({}),
    devices: Mapping[str, str] = MappingProxyType({}),
    fresh_seed: int | None = None,
) -> ZygoteSpec:
    """Specify the zygote of a trial. Trials of a cell with equal devices have equal specifications.

    Raises ``EnvironmentUnusable`` if the environment has no interpreter, or cannot be entered.
    """
    environment, is_command = spec.environment, spec.workload.target == COMMAND_TARGET
    argument: WorkloadArgument = {
        "target": spec.workload.target,
        "overrides": dict(spec.overrides),
        "steps": spec.steps,
        "forks_programs": spec.execution.isolation == "fork" and spec.execution.launcher != AS_TYPED,
        "import_seed": fresh_seed,
        "preload": [] if fresh_seed is not None else list(spec.execution.preloaded),
        "learned": [],
        "cores": None,
    }
    imposed = {**threads, **devices, **spec.overlay}
    ambient = dict(inherited.variables)
    for name in _NOT_INHERITED:
        ambient.pop(name, None)
    if environment.enter:
        words, behind = container_command(spec, inherited, imposed)
        variables = ambient  # those of the engine itself
        sys_path = _sources(inherited.sys_path)
    else:
        python = interpreter(environment)
        if problem := make(environment):
            raise EnvironmentUnusable(f"environment {environment.name!r}: {problem}")
        # Later ones win.
        variables = {**threads, **ambient, **devices}
        if environment.venv is not None:
            if not os.access(python, os.X_OK):
                ours = "" if is_command else " and install pytest-aorta there"
                raise EnvironmentUnusable(
                    f"environment {environment.name!r} ({environment.source_package}): no interpreter at {python}; "
                    f"create it with `python -m venv {environment.venv}`{ours}"
                )
            venv = Path(environment.venv).expanduser().absolute()
            variables["VIRTUAL_ENV"] = str(venv)
            variables["PATH"] = os.pathsep.join([str(venv / "bin"), variables.get("PATH", os.defpath)])
            variables.pop("PYTHONHOME", None)
        variables |= spec.overlay
        if is_command and environment.venv is not None:
            # Only the program runs in the environment; its supervisor runs in this interpreter.
            argument["interpreter"], python = python, sys.executable
        words = (*environment.launcher, python)
        own = dict(imposed) if environment.venv is None else {**imposed, "VIRTUAL_ENV": ""}
        for name in own:
            own[name] = variables[name]
        behind = PrefixFacts(own)
        sys_path = () if environment.venv is not None and not is_command else inherited.sys_path
    return ZygoteSpec(
        command=words,
        environ=variables,
        prepare="pytest_aorta.launch.child.trial_main:prepare_trial",
        argument=argument,
        run="pytest_aorta.launch.child.trial_main:run",
        sys_path=sys_path,
        cwd=inherited.cwd,
        fresh=fresh_seed is not None,
        load="pytest_aorta.launch.child.workload_main:load",
        behind=behind,
        rehearse=None if fresh_seed is not None else "pytest_aorta.launch.child.workload_main:rehearse",
    )


#: The seed of hashes of a Python process.
_HASHES = "PYTHONHASHSEED"


def of_start(spec: ZygoteSpec, index: int, hash_seed: int) -> ZygoteSpec:
    """Specify one of several zygotes of a cell; it gets the hash seed unless the user has set ``PYTHONHASHSEED``."""
    argument = {**spec.argument, "start": index, "hash_seed": hash_seed}
    if _HASHES in spec.environ:
        return replace(spec, argument={**argument, "hash_seed": None})
    own = {_HASHES: str(hash_seed)}
    behind = replace(spec.behind, restored={**spec.behind.restored, **own})
    return replace(spec, argument=argument, environ={**spec.environ, **own}, behind=behind)


class WorkloadInfo(BaseModel):
    """The description of a workload, made by a process that has imported it; see ``trials.loading.describe``."""

    model_config = ConfigDict(frozen=True)

    launch_mode: str
    min_world_size: int
    result_scope: str
    timeout_sec: float | None
    source: str | None
    source_root: str | None = None
    sources: dict[str, str] = {}
    data_files: dict[str, str | None] = {}
    surroundings: dict[str, Any] = {}
    config: Free
    config_error: str | None = None
    config_warnings: list[str] = []
    startup_variables: dict[str, str] = Field(default={}, repr=False)  # may be secrets
    requires_process: bool = False
    packages: dict[str, Any] | None = None

    def digests_now(self, paths: Iterable[str]) -> dict[str, str]:
        """Digests of those source files that are there now; paths as of ``trials.sources``."""
        root = Path(self.source_root or "/")
        return {path: digest for path in paths if (digest := file_digest(root / path)) is not None}


@dataclass(frozen=True)
class PreparedCell:
    """A described workload with the options of a cell, its launch plan, and the limits that the run imposes."""

    info: WorkloadInfo
    plan: LaunchPlan
    imposes: ImposedCounts = field(default_factory=ImposedCounts)

    def request(self, spec: TrialSpec) -> Parts:
        return fingerprint_parts(
            spec,
            self.plan.nproc,
            self.imposes,
            config=self.info.config,
            sources=self.info.sources,
            data_files=self.info.data_files,
            surroundings=self.info.surroundings,
            together=self.plan.mode == "external" or is_multi_node(spec.execution.elastic),
        )
