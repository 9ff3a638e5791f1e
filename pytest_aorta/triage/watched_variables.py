"""What the records of a cell say of the variables that any cell of their plan sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pytest_aorta.probe.variables import REDACTED

#: Read by the engine of a container, outside of it.
_OF_ENGINES = re.compile(r"(NVIDIA|AMD)_(VISIBLE_DEVICES|DRIVER_CAPABILITIES|REQUIRE_\w+)")

Overlay = tuple[tuple[str, str], ...]
Values = tuple[tuple[str, str | None], ...]
"""Variables in alphabetical order, with their values; ``None`` for one that is not set."""


@dataclass(frozen=True)
class WatchedVariables:
    """Of one trial, or of all trials of a cell, as far as they agree.

    Attributes:
        watched: names of those that any cell sets.
        overlay: those that were set for the trial, by environment, mitigation set and extra variables.
        ambient: what the watched ones would be without; empty for a trial in a container, which starts from others.
            Secrets are missing.
        resolved: what the trial's own process had. Secrets are missing.
        unnamed: those that nothing names which the process had loaded and imported at the end of ``run()``; ``None``
            where that is not known, or another program may have read them.
    """

    watched: tuple[str, ...] = ()
    overlay: Overlay = ()
    ambient: Values = ()
    resolved: Values = ()
    unnamed: frozenset[str] | None = None


#: Of a trial in whose plan no cell sets any.
NOT_WATCHED = WatchedVariables()


@lru_cache(maxsize=1024)
def _shared(
    watched: tuple[str, ...], overlay: Overlay, ambient: Values, resolved: Values, unnamed: frozenset[str] | None
) -> WatchedVariables:
    """One object for all trials that agree, which are most of a cell's."""
    return WatchedVariables(watched, overlay, ambient, resolved, unnamed)


def watched_variables(record: Mapping[str, Any]) -> WatchedVariables:
    """Of the record of a trial (``TrialResult.to_dict()``, or what a trial file holds)."""
    request, env = record.get("request") or {}, record.get("env") or {}
    ambient = request.get("ambient") or {}
    if not ambient:
        return NOT_WATCHED
    environment = request.get("environment") or {}
    entered, launcher = environment.get("enter") or False, environment.get("launcher") or ()
    unnamed = None if launcher else _unnamed((env.get("end") or {}).get("variables") or {})
    if unnamed is not None and entered:
        unnamed = frozenset(name for name in unnamed if not _OF_ENGINES.fullmatch(name))
    return _shared(
        tuple(sorted(ambient)),
        tuple(sorted((request.get("overlay") or {}).items())),
        () if entered else _known(ambient),
        _known({name: env["env_vars"].get(name) for name in ambient}) if _saw_variables(env) else (),
        unnamed,
    )


def _known(values: Mapping[str, str | None]) -> Values:
    """A redacted value equals no other one, as far as one can see."""
    return tuple(sorted((name, value) for name, value in values.items() if value != REDACTED))


def _saw_variables(env: Mapping[str, Any]) -> bool:
    """Whether the trial's process has recorded its variables."""
    failed = any(str(reason).startswith("env_vars:") for reason in env.get("partial_reasons") or ())
    return bool(env.get("process")) and isinstance(env.get("env_vars"), Mapping) and not failed


def _unnamed(found: Mapping[str, Any]) -> frozenset[str] | None:
    by = found.get("by")
    if by is None or found.get("unsearched") or found.get("subprocesses", True):
        return None
    return frozenset(name for name, named in by.items() if not named["count"])


def agreed(trials: Iterable[WatchedVariables]) -> WatchedVariables:
    """What all trials say that say anything: those that crashed, for instance, do not say what nothing names."""
    different = set(trials)
    unnamed = [each.unnamed for each in different if each.unnamed is not None]
    overlays = {each.overlay for each in different if each.watched}
    return WatchedVariables(
        watched=tuple(sorted({name for each in different for name in each.watched})),
        overlay=overlays.pop() if len(overlays) == 1 else (),
        ambient=_common(each.ambient for each in different),
        resolved=_common(each.resolved for each in different),
        unnamed=frozenset.intersection(*unnamed) if unnamed else None,
    )


def _common(found: Iterable[Values]) -> Values:
    saying = [set(values) for values in found if values]
    return tuple(sorted(set.intersection(*saying), key=lambda item: item[0])) if saying else ()
