"""A hierarchy of workers that run graphs of tasks; it knows neither trials nor pytest.

``Worker(3, num_sub_workers=4)`` is this host with four processes; ``Worker(4)`` a group of hosts; see
docs/explanation/runtime.md.
"""

from __future__ import annotations

from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_aorta.runtime.arguments import CallConfig as CallConfig
    from pytest_aorta.runtime.arguments import SlotArgs as SlotArgs
    from pytest_aorta.runtime.arguments import TaskArgs as TaskArgs
    from pytest_aorta.runtime.callables import CallableHandle as CallableHandle
    from pytest_aorta.runtime.executor import Executor as Executor
    from pytest_aorta.runtime.executor import ProcessDied as ProcessDied
    from pytest_aorta.runtime.graph import HazardWarning as HazardWarning
    from pytest_aorta.runtime.graph import State as State
    from pytest_aorta.runtime.graph import Tag as Tag
    from pytest_aorta.runtime.orchestrator import MapRef as MapRef
    from pytest_aorta.runtime.orchestrator import Orchestrator as Orchestrator
    from pytest_aorta.runtime.orchestrator import RunHandle as RunHandle
    from pytest_aorta.runtime.orchestrator import TaskRef as TaskRef
    from pytest_aorta.runtime.records import Outcome as Outcome
    from pytest_aorta.runtime.records import StartupError as StartupError
    from pytest_aorta.runtime.records import TaskError as TaskError
    from pytest_aorta.runtime.records import TaskFailure as TaskFailure
    from pytest_aorta.runtime.records import TaskRecord as TaskRecord
    from pytest_aorta.runtime.records import WorkerClosed as WorkerClosed
    from pytest_aorta.runtime.worker import Worker as Worker

#: Where the public names live; nothing is imported before it is asked for.
_HOMES = {
    "arguments": ("CallConfig", "SlotArgs", "TaskArgs"),
    "callables": ("CallableHandle",),
    "executor": ("Executor", "ProcessDied"),
    "graph": ("HazardWarning", "State", "Tag"),
    "orchestrator": ("MapRef", "Orchestrator", "RunHandle", "TaskRef"),
    "records": ("Outcome", "StartupError", "TaskError", "TaskFailure", "TaskRecord", "WorkerClosed"),
    "worker": ("Worker",),
}

__all__ = sorted(chain(*_HOMES.values()))


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
