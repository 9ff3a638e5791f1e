"""Snapshots: the static part once per zygote, the rest once per trial in its own process, at its start and end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_aorta.probe.accelerator import accelerator, compilers
from pytest_aorta.probe.git import git_state
from pytest_aorta.probe.guard import Facts, Guard, describe, plain
from pytest_aorta.probe.host import clock_is_cheap, host, interpreter, runtime_context
from pytest_aorta.probe.loaded import ModuleCount, mapped_objects
from pytest_aorta.probe.named_variables import Watch, note_sources
from pytest_aorta.probe.packages import installed_distributions, packages
from pytest_aorta.probe.process import process
from pytest_aorta.probe.snapshot import EndSnapshot, EnvSnapshot, utc_now
from pytest_aorta.probe.torch_facts import torch_build, torch_state
from pytest_aorta.probe.variables import other_variables, recorded_variables, settings


@dataclass(frozen=True)
class StaticEnv:
    """What cannot change during the life of a process and its forks, as plain data that pickles.

    Attributes:
        sections: fields of ``EnvSnapshot``, by name; a section that could not be had at all is missing.
        reasons: why some probes failed, one line each.
        installed: versions of all installed distributions.
        clock: whether the processor's clock can be read in every trial.
        modules: the imported modules.
    """

    sections: Facts = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    installed: Mapping[str, str] = field(default_factory=dict)
    clock: bool = False
    modules: ModuleCount | None = None


def collect_static(source: Path | None = None) -> StaticEnv:
    """Find out everything that the trials of one zygote have in common. Never raises.

    Starts no threads, leaves no children, imports nothing that the process has not imported; torch is described in
    full only when it has been. Takes tens of milliseconds, and at most some tens of seconds when every tool hangs.

    Args:
        source: a file or folder of the workload, for the state of its git repository.
    """
    guard = Guard()
    installed: dict[str, str] = {}

    def distributions() -> Facts:
        installed.update(installed_distributions(guard))
        return packages(installed)

    probes: dict[str, Callable[[], object]] = {
        "host": lambda: host(guard),
        "runtime_context": lambda: runtime_context(guard),
        "python": lambda: interpreter(guard),
        "torch": lambda: torch_build(guard),
        "accelerator": lambda: accelerator(guard),
        "compilers": lambda: compilers(guard),
        "packages": distributions,
        "git": lambda: git_state(source, guard),
    }
    sections: Facts = {}
    for name, probe in probes.items():
        try:
            sections[name] = plain(probe())
        except Exception as error:
            guard.failed(name, error)
    return refreshed(StaticEnv(sections, tuple(guard.reasons), installed, clock_is_cheap()))


def refreshed(static: StaticEnv) -> StaticEnv:
    """The same for a process that has imported more since, and for its forks."""
    # Once for nothing, so that no forked child is the first to import and warm up what a snapshot takes.
    collect_env(static)
    collect_end(over=False)
    with contextlib.suppress(Exception):  # what fails here fails, and is named, in the trials' snapshots
        note_sources()
    return replace(static, modules=ModuleCount(len(sys.modules), next(reversed(sys.modules))))


def collect_env(static: StaticEnv | None = None, overlay: Collection[str] = ()) -> EnvSnapshot:
    """Find out where and in what this process runs. Never raises. With ``static``, takes about a millisecond.

    Args:
        static: what ``collect_static()`` found in this process or the one it was forked from; without it, this
            process is examined in full now.
        overlay: names of the variables set on purpose for this trial; they are recorded whatever they are called.
    """
    try:
        static = static if static is not None else collect_static()
        guard = Guard()
        clock, nothing = static.clock, Facts()
        variables = guard.fact("env_vars", lambda: recorded_variables(os.environ, overlay), nothing)
        sections = {
            **static.sections,
            "process": guard.fact("process", lambda: process(guard, clock), nothing),
            "env_vars": variables,
            "other_variables": guard.fact("other_variables", lambda: other_variables(os.environ, variables), nothing),
        }
        reasons = [*static.reasons, *guard.reasons]
        return EnvSnapshot(utc_now(), partial=bool(reasons), partial_reasons=reasons, **sections)
    except Exception as error:
        return EnvSnapshot.unavailable(describe("collect_env", error))


def collect_end(over: bool = True, watch: Watch | None = None) -> EndSnapshot:
    """Find out what ``run()`` has set, loaded and imported in this process. Never raises.

    To be called once ``run()`` is over and its result has been sent, also when it has failed. Takes some milliseconds.

    Args:
        over: false in a warm-up before ``run()``: leaves out what torch decides for good when it is first asked.
        watch: variables to look for in what was loaded and imported: some milliseconds more, and some seconds
            for the first trial of an installation.
    """
    captured_at = utc_now()
    try:
        guard, nothing = Guard(), Facts()
        found: Facts = {
            "torch": guard.fact("torch", lambda: torch_state(guard, over), None),
            "libraries": guard.fact("libraries", lambda: plain(mapped_objects()), nothing),
        }
        if watch is not None and watch.names:
            failed: Facts = {"note": "not searched"}
            found["variables"] = guard.fact("variables", watch.look, failed)
        return EndSnapshot(captured_at, bool(guard.reasons), guard.reasons, **found)
    except Exception as error:
        return EndSnapshot(captured_at, partial=True, partial_reasons=[describe("collect_end", error)])


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
