"""What a name stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pytest_aorta.settings import RequestError

EnvironmentKind = Literal["docker", "venv", "rocm", "local"]

#: What starts a process in a container.
Engine = Literal["docker", "podman", "apptainer", "singularity", "enroot"]

#: ``source_package`` of everything that this distribution brings itself.
BUILTIN_SOURCE: Final = "pytest-aorta"

# The values of variables may be secrets (a token for a private index, say), so the representations below, which end up
# in assertion messages and tracebacks, leave them out. Mappings do not hash, so they take part in equality only.


@dataclass(frozen=True)
class Mitigation:
    """A named bundle of environment variables, and of options of the workload.

    Attributes:
        name: as it is typed; unique in a registry.
        env: variable -> value; empty for the mitigation that changes nothing.
        source_package: ``pytest-aorta``, the name of a distribution, ``sidecar:<file name>``, or ``recipe``.
        read_by: names of the libraries that read the variables, for the user; empty where that is not known.
        options: option of the workload -> value, which is one of JSON.
    """

    name: str
    env: Mapping[str, str] = field(hash=False, repr=False)
    source_package: str
    read_by: str = field(default="", compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)


@dataclass(frozen=True)
class Environment:
    """Where a trial runs.

    Attributes:
        name: as it is typed; unique in a registry.
        docker: reference of a container image; a label, unless ``enter`` is set.
        venv: path of a virtual environment.
        rocm: a ROCm version, or the path of an installation; a label.
        launcher: words put before the command of a trial, such as ``("numactl", "--cpunodebind=0")``.
        env: variable -> value, set before those of the mitigations, which therefore win.
        enter: whether trials run in a container of the image, started by this engine, or by the first that is there.
        engine_options: words for the engine, before the image.
        source_package: ``pytest-aorta``, the name of a distribution, or ``sidecar:<file name>``.
    """

    name: str
    docker: str | None = None
    venv: str | None = None
    rocm: str | None = None
    launcher: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    enter: bool | Engine = False
    engine_options: tuple[str, ...] = ()
    source_package: str = field(kw_only=True)

    @property
    def kind(self) -> EnvironmentKind:
        """The outermost part of the environment; ``local`` when it has none."""
        if self.docker:
            return "docker"
        if self.venv:
            return "venv"
        if self.rocm:
            return "rocm"
        return "local"


@dataclass(frozen=True)
class WorkloadEntry:
    """Where the class of a workload is to be found; the registry never imports it.

    Attributes:
        name: as it is typed; unique in a registry.
        target: ``module:Class``, or ``/absolute/file.py:Class``.
        source_package: ``pytest-aorta`` or the name of a distribution.
        options: of the workload, that come with the entry.
    """

    name: str
    target: str
    source_package: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


class RegistryError(RequestError):
    """A name, a plugin's payload or a sidecar file that cannot be used; the message says which and why."""


class RegistryCollisionError(RegistryError):
    """One name offered by two sources. There is no winner: a table must never depend on the order of ``sys.path``."""


class UnknownWorkloadError(RegistryError):
    """No workload has that name."""


class UnknownMitigationError(RegistryError):
    """No mitigation has that name."""


class UnknownEnvironmentError(RegistryError):
    """No environment has that name."""


class UnknownCollectorError(RegistryError):
    """No collector has that name."""


def one_line_of(error: BaseException) -> str:
    """Type and message of what a plugin has raised, on one line, so that a list of problems is a list of lines."""
    from pytest_aorta.common.texts import describe_exception  # only here: most runs have no broken plugin

    found = describe_exception(error)
    return " ".join(f"{found['type']}: {found['message']}".split())
