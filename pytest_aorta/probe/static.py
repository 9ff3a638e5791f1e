"""The part of a snapshot that a process and its forks share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_aorta.probe.accelerator import accelerator
from pytest_aorta.probe.compilers import compilers
from pytest_aorta.probe.cpu import clock_is_cheap
from pytest_aorta.probe.git import GitWatch, git_state
from pytest_aorta.probe.guard import Facts, Guard
from pytest_aorta.probe.imported_modules import ModuleCount
from pytest_aorta.probe.interpreter import interpreter
from pytest_aorta.probe.libraries import MappedBefore, loaded_libraries
from pytest_aorta.probe.machine import host
from pytest_aorta.probe.named_variables import ImportedBefore
from pytest_aorta.probe.packages import Installed, installed_distributions, packages
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
        parts_ms: milliseconds that each section took.
        installed: the installed distributions, all of them.
        git: signs of a change of the workload's repository; ``None`` without one.
        clock: whether the processor's clock can be read in every trial.
        modules: what this process has imported already.
        mapped: the shared objects that are mapped already.
        imported: the sources that are imported already.
    """

    sections: Facts = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    parts_ms: dict[str, float] = field(default_factory=dict)
    installed: Installed = field(default_factory=Installed)
    git: GitWatch | None = None
    clock: bool = False
    modules: ModuleCount | None = None
    mapped: MappedBefore | None = None
    imported: ImportedBefore | None = None


def gather_static(source: Path | None = None) -> StaticEnv:
    """The sections that the trials of one zygote have in common. Never raises."""
    guard = Guard()
    installed = Installed()
    watch: GitWatch | None = None

    def git() -> Facts | None:
        nonlocal watch
        state, watch = git_state(source, guard)
        return state

    def distributions() -> Facts:
        nonlocal installed
        installed = installed_distributions(guard)
        return packages(installed)

    probes: dict[str, Callable[[], object]] = {
        "host": lambda: host(guard),
        "runtime_context": lambda: runtime_context(guard),
        "python": lambda: interpreter(guard),
        "torch": lambda: torch_build(guard),
        "libraries": loaded_libraries,
        "accelerator": lambda: accelerator(guard),
        "compilers": lambda: compilers(guard),
        "packages": distributions,
        "git": git,
    }
    sections: Facts = {}
    for name, probe in probes.items():
        with guard.timed(name):
            try:
                sections[name] = plain(probe())
            except Exception as error:
                guard.failed(name, error)
    clock = guard.fact("process.cpu_clock_mhz", clock_is_cheap, False)
    return StaticEnv(sections, tuple(guard.reasons), guard.parts_ms, installed, watch, clock)
