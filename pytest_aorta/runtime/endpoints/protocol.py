"""What a worker and the processes below it send each other, and what carries it."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

from pytest_aorta.runtime.memory.transfer import EncodedArgs

# Orders: from a worker to a process below. There are tens of thousands of tasks per second, therefore no models.


class _TaskOrder(TypedDict):
    op: Literal["task"]
    id: int
    digest: str
    args: EncodedArgs


class TaskOrder(_TaskOrder, total=False):
    """Run a callable. ``args`` is what ``Sender.encode`` or ``transfer.inline`` gave, or missing.

    With ``first_item``, the configuration is a list of items: call it with each. The first one has this number.
    """

    first_item: int


class JobOrder(TypedDict):
    """Run a job. ``prepare``: key, target and packed payload of its preparation."""

    op: Literal["job"]
    id: int
    target: str
    payload: str
    prepare: tuple[str, str, str] | None


class CancelOrder(TypedDict):
    """End a task or a job early."""

    op: Literal["cancel"]
    id: int
    why: str


class MapOrder(TypedDict):
    """Map a storage, whose descriptor follows."""

    op: Literal["map"]
    storage: int
    bytes: int


class UnmapOrder(TypedDict):
    """Let go of ``storages``."""

    op: Literal["unmap"]
    storages: list[int]


class RegisterOrder(TypedDict):
    """Load a callable: the fields of a ``Definition``."""

    op: Literal["register"]
    definition: list[str]


class UnregisterOrder(TypedDict):
    """Forget a callable."""

    op: Literal["unregister"]
    digest: str


class CloseOrder(TypedDict):
    """End."""

    op: Literal["close"]


Order = TaskOrder | JobOrder | CancelOrder | MapOrder | UnmapOrder | RegisterOrder | UnregisterOrder | CloseOrder

# Reports: the other way. A ``failure`` is what ``TaskFailure.to_plain`` gave.


class ReadyReport(TypedDict):
    """It takes tasks now."""

    op: Literal["ready"]


class FailedReport(TypedDict):
    """It could not get ready."""

    op: Literal["failed"]
    failure: dict[str, Any]


class EndedReport(TypedDict, total=False):
    """A task or a job has ended. ``written``: number, and shape, strides, type and content, of each tensor that came by
    value."""

    op: Literal["ended"]
    id: int
    outcome: str
    payload: Any
    failure: dict[str, Any] | None
    written: list[tuple[int, list[Any]]]


class EventReport(TypedDict):
    """A job has emitted something."""

    op: Literal["event"]
    id: int
    event: dict[str, Any]


class CallableReport(TypedDict):
    """An order to load or to forget a callable was carried out, or failed."""

    op: Literal["registered", "unregistered"]
    digest: str
    failure: dict[str, Any] | None


Report = ReadyReport | FailedReport | EndedReport | EventReport | CallableReport


class StartupError(RuntimeError):
    """A worker's child could not be started."""


class Link(Protocol):
    """Sends orders to a process, and ends it."""

    def start(self) -> None:
        """Begin to deliver reports; raises ``OSError`` where the process cannot be reached."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send an order; raises ``OSError`` when the process is gone."""

    def kill(self, grace: float) -> None:
        """End the process and all its descendants, within ``grace`` seconds; does not wait."""

    def close(self, grace: float) -> None:
        """Ask it to end, wait for ``grace`` seconds, then end it."""


@runtime_checkable
class LocalLink(Link, Protocol):
    """A link to a process of the same host, which can be sent file descriptors."""

    def send_text(self, text: str) -> None:
        """Send an order that is JSON already."""

    def send_fd(self, fd: int) -> None:
        """Send a file descriptor."""


def packed(payload: Any) -> str:
    """Data of this process, as text for one that runs the same code."""
    return base64.b64encode(pickle.dumps(payload)).decode()


def unpacked(text: str) -> Any:
    """The reverse of ``packed``."""
    return pickle.loads(base64.b64decode(text))
