"""The environment of one trial, as it is kept in the trial's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

SCHEMA_VERSION = "1.2"


def utc_now() -> str:
    """This moment in ISO 8601 with milliseconds, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class EndSnapshot:
    """What ``run()`` has left behind in a trial's process.

    Attributes:
        captured_at, partial, partial_reasons: as in ``EnvSnapshot``.
        torch: threads, deterministic flags, precision, allocator, initialised devices; ``None`` when not imported.
        libraries: how many shared objects are mapped, the paths of those that matter, and of those replaced since.
        variables: what names a watched variable, see ``named_variables``; ``None`` where none is watched.
    """

    captured_at: str
    partial: bool = False
    partial_reasons: list[str] = field(default_factory=list)
    torch: dict[str, Any] | None = None
    libraries: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """This snapshot as JSON-able data; without ``variables`` where none is watched."""
        return {name: value for name, value in vars(self).items() if name != "variables" or value is not None}


@dataclass(frozen=True)
class EnvSnapshot:
    """What a trial's own process saw of its machine, its software and its variables; docs/probe.md has every fact.

    ``None`` stands for a fact that does not exist there (no container, no branch) and for one that could not be found
    out; only the second makes the snapshot ``partial`` and has a line ``probe: Type: message`` in ``partial_reasons``.
    Memory is in bytes. ``end`` is the same process after ``run()``, ``None`` when it did not get there.
    """

    captured_at: str
    schema_version: str = SCHEMA_VERSION
    partial: bool = False
    partial_reasons: list[str] = field(default_factory=list)
    host: dict[str, Any] = field(default_factory=dict)
    runtime_context: dict[str, Any] = field(default_factory=dict)
    python: dict[str, Any] = field(default_factory=dict)
    torch: dict[str, Any] = field(default_factory=dict)
    accelerator: dict[str, Any] = field(default_factory=dict)
    compilers: dict[str, Any] = field(default_factory=dict)
    packages: dict[str, Any] = field(default_factory=dict)
    git: dict[str, Any] | None = None
    process: dict[str, Any] = field(default_factory=dict)
    env_vars: dict[str, str] = field(default_factory=dict)
    other_variables: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """This snapshot as JSON-able data."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvSnapshot:
        """The snapshot that ``to_dict()`` made, also of a newer 1.x; raises ``ValueError`` for another version."""
        version = str(data.get("schema_version", SCHEMA_VERSION))
        if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
            raise ValueError(f"schema_version of an environment is {version!r}; this version reads 1.x")
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})

    @classmethod
    def unavailable(cls, reason: str) -> EnvSnapshot:
        """The snapshot of a trial whose process took none, for a ``reason``."""
        return cls(captured_at=utc_now(), partial=True, partial_reasons=[reason])
