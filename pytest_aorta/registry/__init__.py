"""Names -> workloads, mitigations, environments and collectors."""

from __future__ import annotations

from pytest_aorta.registry.registry import Registry, get_environment, get_mitigation
from pytest_aorta.registry.types import (
    Environment,
    Mitigation,
    RegistryCollisionError,
    RegistryError,
    UnknownCollectorError,
    UnknownEnvironmentError,
    UnknownMitigationError,
    UnknownWorkloadError,
    WorkloadEntry,
)

__all__ = [
    "Environment",
    "Mitigation",
    "Registry",
    "RegistryCollisionError",
    "RegistryError",
    "UnknownCollectorError",
    "UnknownEnvironmentError",
    "UnknownMitigationError",
    "UnknownWorkloadError",
    "WorkloadEntry",
    "get_environment",
    "get_mitigation",
]
