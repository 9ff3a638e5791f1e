"""A worker as JSON values, for the process that builds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_aorta.runtime.endpoints.process import packed, unpacked
from pytest_aorta.runtime.memory.callables import Callables, Definition
from pytest_aorta.runtime.worker import Worker

#: Arguments of ``Worker`` that are JSON values as they are.
_SAME = ("num_sub_workers", "heap_ring_size", "startup_timeout_s", "service", "grace")


def write_manifest(worker: Worker) -> dict[str, Any]:
    """Everything that another process needs to build this worker, and those below it."""
    return {
        **{name: getattr(worker, name) for name in ("level", *_SAME)},
        "device_ids": list(worker.device_ids),
        "slots": len(worker.slots),
        "prepare": None if worker.prepare is None else worker.prepare.to_plain(),
        "service_argument": packed(worker.service_argument),
        "callables": worker.callables.to_plain(),
        "eligible": [[serial, sorted(allowed)] for serial, allowed in worker.eligible.items()],
        "children": [[write_manifest(child), host] for child, host in worker.children],
    }


def read_manifest(manifest: Mapping[str, Any]) -> Worker:
    """The worker of a manifest, not started."""
    worker = Worker(
        manifest["level"],
        device_ids=manifest["device_ids"],
        slots=manifest["slots"],
        service_argument=unpacked(manifest["service_argument"]),
        **{name: manifest[name] for name in _SAME},
    )
    if manifest["prepare"] is not None:
        worker.prepare = Definition(*manifest["prepare"])
    worker.callables = Callables.from_plain(manifest["callables"])
    worker.eligible = {serial: frozenset(allowed) for serial, allowed in manifest["eligible"]}
    for child, host in manifest["children"]:
        worker.add_worker(read_manifest(child), host)
    return worker
