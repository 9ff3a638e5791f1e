"""Snapshots: the static part once per zygote, the rest once per trial in its own process, at its start and end."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_aorta.probe.git import git_state_now
from pytest_aorta.probe.guard import Facts, Guard, describe
from pytest_aorta.probe.imported_modules import count_modules, imported_modules
from pytest_aorta.probe.libraries import map_before_forks, mapped_now
from pytest_aorta.probe.named_variables import imported_before_forks
from pytest_aorta.probe.plain import plain
from pytest_aorta.probe.process_state import process
from pytest_aorta.probe.snapshot import EndSnapshot, EnvSnapshot, utc_now
from pytest_aorta.probe.static import StaticEnv, gather_static
from pytest_aorta.probe.torch_state import torch_state
from pytest_aorta.probe.variables import recorded_variables
from pytest_aorta.probe.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


def collect_static(source: Path | None = None) -> StaticEnv:
    """Find out everything that the trials of one zygote have in common. Never raises.

    Starts no threads, leaves no children, imports nothing that the process has not imported; torch is described in
    full only when it has been. Takes tens of milliseconds, and at most some tens of seconds when every tool hangs.

    Args:
        source: a file or folder of the workload, for the state of its git repository.
    """
    return refreshed(gather_static(source))


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
    """The same, so that forks of this process need not look at what it has imported. Takes some milliseconds."""
    try:
        imported = None if static.modules is None else imported_before_forks(static.modules)
        return replace(static, imported=imported)
    except Exception:
        return static


def collect_env(static: StaticEnv | None = None, overlay: Collection[str] = ()) -> EnvSnapshot:
    """Find out where and in what this process runs. Never raises.

    With ``static`` this takes about a millisecond, and starts no process unless files of the workload's repository have
    changed since: then git runs once. Every trial can afford it.

    Args:
        static: what ``collect_static()`` found in this process or the one it was forked from; without it, this
            process is examined in full now.
        overlay: names of the variables set on purpose for this trial; they are recorded whatever they are called.
    """
    try:
        return _collect(static if static is not None else collect_static(), overlay)
    except Exception as error:
        return EnvSnapshot.unavailable(describe("collect_env", error))


def collect_end(static: StaticEnv | None = None, over: bool = True, watch: Watch | None = None) -> EndSnapshot:
    """Find out what ``run()`` has set, loaded and imported in this process. Never raises.

    To be called once ``run()`` is over and its result has been sent, also when it has failed. Takes about two
    milliseconds with ``static``, which is used for the names of the installed distributions.

    Args:
        static: as for ``collect_env()``.
        over: false in a warm-up before ``run()``: leaves out what torch decides for good when it is first asked.
        watch: variables to look for in what was loaded and imported, if there are any: less than a millisecond more,
            and some tenths of a second for the first trial of a cell.
    """
    try:
        return _collect_end(static if static is not None else collect_static(), over, watch)
    except Exception as error:
        return EndSnapshot(captured_at=utc_now(), partial=True, partial_reasons=[describe("collect_end", error)])


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


def _collect_end(static: StaticEnv, over: bool, watch: Watch | None) -> EndSnapshot:
    guard = Guard()
    captured_at = utc_now()
    torch = guard.part("torch", lambda: torch_state(guard, over), None)
    libraries: Facts = guard.part("libraries", lambda: mapped_now(static.mapped), {})
    modules: Facts = guard.part("modules", lambda: plain(imported_modules(static.installed, static.modules)), {})
    variables: Facts | None = None
    if watch is not None and watch.names:
        # The very facts from before the forks stand for the files from before them.
        mapped = static.mapped if static.mapped is not None and libraries is static.mapped.facts else None
        variables = guard.part("variables", lambda: watch.look(mapped, static.imported), {"note": "not searched"})
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
