"""Which process a cell's trials run in: interpreter, launcher prefix, and the complete environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_aorta.registry import Environment

#: pytest's own bookkeeping, which changes from item to item and says nothing to a workload.
_NOT_INHERITED = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")


@dataclass(frozen=True)
class Seat:
    """What a trial is given of its host for as long as it runs.

    Attributes:
        cores: that it may run on; ``None`` for all.
        threads: variables that say how many threads to compute with.
        devices: variables that say which devices are its own.
        device_ids: their numbers.
        descriptors: the locks on these devices, which its process keeps.
    """

    cores: tuple[int, ...] | None = None
    threads: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    device_ids: tuple[int, ...] = ()
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True)
class Inherited:
    """What a trial has of the process that asks for it, as it was at that moment.

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
        """Of this process."""
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
    environment: Environment, overlay: Mapping[str, str], base: Mapping[str, str], seat: Seat
) -> dict[str, str]:
    """The whole environment of a trial: ``base``, its seat's, the venv's, and the overlay, later ones winning.

    A seat's number of threads gives way to what ``base`` says, its devices do not.
    """
    inherited = {name: value for name, value in base.items() if name not in _NOT_INHERITED}
    inherited = {**seat.threads, **inherited, **seat.devices}
    if environment.venv is not None:
        venv = Path(environment.venv).expanduser().absolute()
        inherited["VIRTUAL_ENV"] = str(venv)
        inherited["PATH"] = os.pathsep.join([str(venv / "bin"), inherited.get("PATH", os.defpath)])
        inherited.pop("PYTHONHOME", None)
    return {**inherited, **overlay}
