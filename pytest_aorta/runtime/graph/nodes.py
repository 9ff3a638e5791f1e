"""One task, or one group of tasks, in the graph."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class State(enum.Enum):
    """The state of a node. Unstarted ones may become ``FAILED`` directly; ``CONSUMED`` once nothing holds it."""

    BUILDING = "building"
    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CONSUMED = "consumed"


UNSTARTED = frozenset({State.BUILDING, State.PENDING, State.READY})


@dataclass(eq=False, slots=True)
class Node:
    """A node; only its graph changes anything but ``payload``, which belongs to the code that added it.

    The garbage collector walks every container of every node that is alive, time and again: what is empty is none.
    """

    id: int
    run: Any
    label: str = ""
    state: State = State.BUILDING
    #: Producers that are not done.
    fan_in: int = 0
    #: Nodes that are held until this one has settled, and those that hold this one: an ordered set, or ``None``.
    producers: tuple[Node, ...] = field(default=(), repr=False)
    consumers: dict[Node, None] | None = field(default=None, repr=False)
    #: Holds on it: of its scope, of itself until it has settled, of every consumer.
    holds: int = 2
    in_scope: bool = True
    error: BaseException | None = None
    #: The node whose failure is the reason for this one's; None if it has failed itself.
    poisoned_by: Node | None = field(default=None, repr=False)
    payload: Any = field(default=None, repr=False)

    @property
    def failed(self) -> bool:
        """Whether it has failed, consumed or not."""
        return self.error is not None
