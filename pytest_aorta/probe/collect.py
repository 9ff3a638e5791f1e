"""Snapshots: the static part once per zygote, the rest once per trial in its own process, at its start and end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_aorta.probe.accelerator import accelerator, compilers
from pytest_aorta.probe.git import GitWatch, git_state, git_state_now
from pytest_aorta.probe.guard import Facts, Guard, describe, plain
from pytest_aorta.probe.host import clock_is_cheap, host, interpreter, runtime_context
from pytest_aorta.probe.loaded import (
    MappedBefore,
    ModuleCount,
    count_modules,
    imported_modules,
    loaded_libraries,
    map_before_forks,
    mapped_now,
)
from pytest_aorta.probe.named_variables import Watch, sources_key
from pytest_aorta.probe.packages import Installed, installed_distributions, packages
from pytest_aorta.probe.process import process
from pytest_aorta.probe.snapshot import EndSnapshot, EnvSnapshot, utc_now
from pytest_aorta.probe.torch_facts import torch_build, torch_state
from pytest_aorta.probe.variables import recorded_variables, settings

if TYPE_CHECKING:
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
        modules: the imported modules.
        mapped: the mapped shared objects.
        imported: the ``sources_key`` of the modules, where variables are watched.
    """

    sections: Facts = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    parts_ms: dict[str, float] = field(default_factory=dict)
    installed: Installed = field(default_factory=Installed)
    git: GitWatch | None = None
    clock: bool = False
    modules: ModuleCount | None = None
    mapped: MappedBefore | None = None
    imported: str | None = None


def collect_static(source: Path | None = None) -> StaticEnv:
    """Find out everything that the trials of one zygote have in common. Never raises.

    Starts no threads, leaves no children, imports nothing that the process has not imported; torch is described in
    full only when it has been. Takes tens of milliseconds, and at most some tens of seconds when every tool hangs.

    Args:
        source: a file or folder of the workload, for the state of its git repository.
    """
    guard = Guard()
    installed, watch = Installed(), None

    def distributions() -> Facts:
        nonlocal installed
        installed = installed_distributions(guard)
        return packages(installed)

    def git() -> Facts | None:
        nonlocal watch
        state, watch = git_state(source, guard)
        return state

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
    return refreshed(StaticEnv(sections, tuple(guard.reasons), guard.parts_ms, installed, watch, clock))


def refreshed(static: StaticEnv) -> StaticEnv:
    """The same for a process that has imported more since, and for its forks."""
    # Once for nothing, so that no forked child is the first to import and warm up what a snapshot takes.
    collect_env(static)
    collect_end(static, over=False)
    try:
        return replace(static, modules=count_modules(static.installed), mapped=map_before_forks(), imported=None)
    except Exception:
        return static  # what fails here fails, and is named, in the trials' snapshots


def before_forks(static: StaticEnv) -> StaticEnv:
    """The same for forks that watch variables: they need not look at the sources again. Takes some milliseconds."""
    try:
        return replace(
            static, imported=None if static.modules is None else sources_key(list(sys.modules)[: static.modules.size])
        )
    except Exception:
        return static


def collect_env(static: StaticEnv | None = None, overlay: Collection[str] = ()) -> EnvSnapshot:
    """Find out where and in what this process runs. Never raises.

    With ``static`` this takes about a millisecond, and starts no process unless files of the workload's repository have
    changed since: then git runs once.

    Args:
        static: what ``collect_static()`` found in this process or the one it was forked from; without it, this
            process is examined in full now.
        overlay: names of the variables set on purpose for this trial; they are recorded whatever they are called.
    """
    try:
        return _collect(static if static is not None else collect_static(), overlay)
    except Exception as error:
        return EnvSnapshot.unavailable(describe("collect_env", error))


def _collect(static: StaticEnv, overlay: Collection[str]) -> EnvSnapshot:
    guard = Guard()
    captured_at = utc_now()
    nothing: dict[str, str] = {}
    now: Facts = guard.part("process", lambda: process(guard, static.clock), {})
    variables = guard.part("env_vars", lambda: recorded_variables(os.environ, overlay), nothing)
    sections = static.sections
    if sections.get("git") is not None:
        before: Facts | None = sections["git"]
        sections = {**sections, "git": guard.part("git", lambda: git_state_now(before, static.git), before)}
    reasons = [*static.reasons, *guard.reasons]
    # Not validated: all of it is plain data made by this package, and in a freshly forked child validation would cost
    # more than everything above, because it touches (and so copies) every page that the sections lie on.
    return EnvSnapshot.model_construct(
        captured_at=captured_at,
        partial=bool(reasons),
        partial_reasons=reasons,
        parts_ms={
            **{f"static.{name}": milliseconds for name, milliseconds in static.parts_ms.items()},
            **{f"trial.{name}": milliseconds for name, milliseconds in guard.parts_ms.items()},
        },
        process=now,
        env_vars=variables,
        **sections,
    )


def collect_end(static: StaticEnv | None = None, over: bool = True, watch: Watch | None = None) -> EndSnapshot:
    """Find out what ``run()`` has set, loaded and imported in this process. Never raises.

    To be called once ``run()`` is over and its result has been sent, also when it has failed. Takes about two
    milliseconds with ``static``.

    Args:
        static: as for ``collect_env()``.
        over: false in a warm-up before ``run()``: leaves out what torch decides for good when it is first asked.
        watch: variables to look for in what was loaded and imported: less than a millisecond more, and some seconds
            for the first trial of an installation.
    """
    try:
        return _collect_end(static if static is not None else collect_static(), over, watch)
    except Exception as error:
        return EndSnapshot(captured_at=utc_now(), partial=True, partial_reasons=[describe("collect_end", error)])


def _collect_end(static: StaticEnv, over: bool, watch: Watch | None) -> EndSnapshot:
    guard = Guard()
    captured_at = utc_now()
    torch = guard.part("torch", lambda: torch_state(guard, over), None)
    libraries: Facts = guard.part("libraries", lambda: mapped_now(static.mapped), {})
    modules: Facts = guard.part("modules", lambda: plain(imported_modules(static.installed, static.modules)), {})
    variables: Facts | None = None
    if watch is not None and watch.names:
        variables = guard.part(
            "variables",
            lambda: watch.look(static.mapped, static.modules, static.imported),
            {"note": "not searched"},
        )
    return EndSnapshot.model_construct(
        captured_at=captured_at,
        partial=bool(guard.reasons),
        partial_reasons=guard.reasons,
        torch=torch,
        libraries=libraries,
        modules=modules,
        variables=variables,
        parts_ms=guard.parts_ms,
    )


def variables_now() -> dict[str, str]:
    """The variables that are settings, before a workload that is imported may set some itself."""
    return settings(os.environ)


def surroundings(static: StaticEnv, variables: Mapping[str, str]) -> Facts:
    """What a trial finds around its workload and its options, as far as that decides between two results.

    ``python`` (its version and build), ``interpreter``, ``torch``, ``packages``, ``cpus``, ``variables``.
    ``interpreter`` is a path; ``torch`` a version, followed by the commit that it was built of if it is imported;
    ``packages`` a digest as in ``probe.packages``; ``cpus`` the number that this process may run on.
    """
    python, torch = static.sections.get("python", {}), static.sections.get("torch", {})
    return {
        "python": python.get("build"),
        "interpreter": python.get("executable"),
        "torch": " ".join(filter(None, (torch.get("version"), torch.get("git_version")))) or None,
        "packages": static.sections.get("packages", {}).get("digest"),
        "cpus": len(os.sched_getaffinity(0)),
        "variables": dict(variables),
    }
