"""Snapshots: the static part once per zygote, the rest once per trial in its own process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_aorta.probe.guard import Facts, Guard, describe
from pytest_aorta.probe.process_state import process
from pytest_aorta.probe.snapshot import EnvSnapshot, utc_now
from pytest_aorta.probe.static import StaticEnv, gather_static
from pytest_aorta.probe.variables import recorded_variables

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
    static = gather_static(source)
    # Once for nothing, so that no forked child is the first to import and warm up what a snapshot takes.
    collect_env(static)
    return static


def collect_env(static: StaticEnv | None = None, overlay: Collection[str] = ()) -> EnvSnapshot:
    """Find out where and in what this process runs. Never raises.

    With ``static`` this takes well under a millisecond and starts no process, so every trial can afford it.

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
    now: Facts = guard.fact("process", lambda: process(guard), {})
    variables = guard.fact("env_vars", lambda: recorded_variables(os.environ, overlay), nothing)
    reasons = [*static.reasons, *guard.reasons]
    # Not validated: all of it is plain data made by this package, and in a freshly forked child validation would cost
    # more than everything above, because it touches (and so copies) every page that the sections lie on.
    return EnvSnapshot.model_construct(
        captured_at=captured_at,
        partial=bool(reasons),
        partial_reasons=reasons,
        process=now,
        env_vars=variables,
        **static.sections,
    )
