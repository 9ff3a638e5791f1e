"""The part of a snapshot that a process and its forks share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_aorta.probe.accelerator import accelerator
from pytest_aorta.probe.git import git_state
from pytest_aorta.probe.guard import Facts, Guard
from pytest_aorta.probe.interpreter import interpreter
from pytest_aorta.probe.libraries import loaded_libraries
from pytest_aorta.probe.machine import host
from pytest_aorta.probe.packages import packages
from pytest_aorta.probe.plain import plain
from pytest_aorta.probe.runtime_context import runtime_context
from pytest_aorta.probe.torch_build import torch_build

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class StaticEnv:
    """What cannot change during the life of a process and its forks, as plain data that pickles and serialises.

    Attributes:
        sections: fields of ``EnvSnapshot``, by name; a section that could not be had at all is missing.
        reasons: why some probes failed, one line each.
    """

    sections: Facts = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


def gather_static(source: Path | None = None) -> StaticEnv:
    """The sections that the trials of one zygote have in common. Never raises."""
    guard = Guard()
    probes: dict[str, Callable[[], object]] = {
        "host": lambda: host(guard),
        "runtime_context": lambda: runtime_context(guard),
        "python": lambda: interpreter(guard),
        "torch": lambda: torch_build(guard),
        "libraries": loaded_libraries,
        "accelerator": lambda: accelerator(guard),
        "packages": lambda: packages(guard),
        "git": lambda: git_state(source, guard),
    }
    sections: Facts = {}
    for name, probe in probes.items():
        try:
            sections[name] = plain(probe())
        except Exception as error:
            guard.failed(name, error)
    return StaticEnv(sections, tuple(guard.reasons))
