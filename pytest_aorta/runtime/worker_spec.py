"""All that another process needs to build a worker, and those below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_aorta.runtime.memory.callables import CallableTable, Definition


@dataclass(frozen=True)
class WorkerSpec:
    """The arguments of ``Worker``, where they are documented, and what was registered with it since.

    Attributes:
        slots: number of places for jobs.
        identity: digests of files that must be the same on the hosts of ``children``.
        children: the workers below, each with its host: an execnet specification, or ``None`` for the same one.
    """

    level: int
    callables: CallableTable
    device_ids: tuple[int, ...] = ()
    num_sub_workers: int = 0
    slots: int = 0
    heap_ring_size: int = 2**30
    ring_size: int = 2**17
    ring_timeout: float | None = None
    startup_timeout_s: float = 300.0
    prepare: Definition | None = None
    service: str | None = None
    service_argument: Any = None
    grace: float = 5.0
    identity: Mapping[str, str] = field(default_factory=dict)
    children: tuple[tuple[WorkerSpec, str | None], ...] = ()

    @property
    def total_slots(self) -> int:
        """Places for jobs here and below."""
        return self.slots + sum(child.total_slots for child, _ in self.children)
