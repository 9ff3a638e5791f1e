"""The environment of one trial, as it is kept in the trial's file."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, field_validator

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_VERSION = "1.1"


def utc_now() -> str:
    """This moment in ISO 8601 with milliseconds, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


class EndSnapshot(BaseModel):
    """What ``run()`` has left behind in a trial's process: what was set, loaded and imported on the way.

    Attributes:
        captured_at, partial, partial_reasons: as in ``EnvSnapshot``.
        torch: threads, deterministic flags, precision, allocator, initialised devices; ``None`` when not imported.
        libraries: the shared objects that are mapped: names, digest of the paths, paths of those that matter.
        modules: the imported modules, counted by installed distribution.
        variables: which of these name a watched variable: ``by``, ``unsearched``, ``note`` as ``named_variables()``
            gives them, and ``subprocesses``, whether the process has had child processes, which may have read
            anything. ``None``, and no key in the data, where no variable is watched.
        parts_ms: milliseconds that each part took.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    captured_at: str
    partial: bool = False
    partial_reasons: list[str] = []
    torch: dict[str, Any] | None = None
    libraries: dict[str, Any] = {}
    modules: dict[str, Any] = {}
    variables: dict[str, Any] | None = None
    parts_ms: dict[str, float] = {}

    def to_dict(self) -> dict[str, Any]:
        """This snapshot as JSON-able data that shares nothing with it."""
        return self.model_dump(mode="json", exclude=self.without())

    def without(self) -> set[str]:
        """The fields that do not go into its data."""
        return {"variables"} if self.variables is None else set()


class EnvSnapshot(BaseModel):
    """What a trial's own process saw of its machine, its software and its variables.

    A section holds ``None`` for a fact that does not exist there (no container, no branch) and for one that could not
    be found out; only the second makes the snapshot ``partial`` and is named in ``partial_reasons``. Memory is in
    bytes.

    Attributes:
        schema_version: version of this structure; a reader of 1.x ignores the keys it does not know.
        captured_at: when the snapshot was taken, ISO 8601 in UTC.
        partial: whether a probe failed.
        partial_reasons: one ``probe: ExceptionType: message`` per failed probe.
        parts_ms: milliseconds that each part took, by ``static.<section>`` (once per cell) and ``trial.<section>``.
        host: hostname and how long its look-up takes, kernel and its command line, CPU model, instruction sets,
            sockets, cores, caches and clock, total memory, NUMA nodes, transparent huge pages.
        runtime_context: container, control group limits, virtual or conda environment.
        python: version, executable, prefix.
        torch: how torch was built, the versions of its libraries, its thread counts at the start.
        libraries: paths of the loaded libraries that matter (collectives, BLAS, GPU runtimes, OpenMP, allocators).
        accelerator: drivers and devices of NVIDIA and AMD, CUDA toolkit, ROCm release.
        compilers: paths and versions of the compilers on PATH.
        packages: versions of relevant distributions, a digest of all of them.
        git: state of the repository that holds the workload's source; ``None`` without one.
        process: pid, working directory, limits, affinity, nice level and scheduler, NUMA policy, clock, huge pages,
            available memory, load, torch's thread counts now.
        env_vars: the variables recorded by the rule of ``recorded_variables``, as this process saw them.
        end: the same process after ``run()``; ``None`` when it did not get there.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: str = SCHEMA_VERSION
    captured_at: str
    partial: bool = False
    partial_reasons: list[str] = []
    parts_ms: dict[str, float] = {}
    host: dict[str, Any] = {}
    runtime_context: dict[str, Any] = {}
    python: dict[str, Any] = {}
    torch: dict[str, Any] = {}
    libraries: list[str] = []
    accelerator: dict[str, Any] = {}
    compilers: dict[str, Any] = {}
    packages: dict[str, Any] = {}
    git: dict[str, Any] | None = None
    process: dict[str, Any] = {}
    env_vars: dict[str, str] = {}
    end: EndSnapshot | None = None

    @field_validator("schema_version")
    @classmethod
    def _major_is_known(cls, version: str) -> str:
        if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
            raise ValueError(f"schema_version of an environment is {version!r}; this version reads 1.x")
        return version

    def to_dict(self) -> dict[str, Any]:
        """This snapshot as JSON-able data that shares nothing with it."""
        return self.model_dump(mode="json", exclude={} if self.end is None else {"end": self.end.without()})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvSnapshot:
        """The snapshot that ``to_dict()`` made, also of a newer 1.x. Raises ``pydantic.ValidationError``."""
        return cls.model_validate(dict(data))

    @classmethod
    def unavailable(cls, reason: str) -> EnvSnapshot:
        """The snapshot of a trial whose process took none, for a ``reason``."""
        return cls(captured_at=utc_now(), partial=True, partial_reasons=[reason])
