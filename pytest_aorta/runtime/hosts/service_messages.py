"""What the two sides of a connection to a host send each other, apart from the messages of the service."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

#: From the parent: the service should end.
END = "end"


class HostFacts(TypedDict):
    """The first message from a host, sent by ``host_main.BOOTSTRAP``."""

    host: str
    pid: int
    python: str
    executable: str
    main_thread: bool
    version: str | None
    problem: str | None


class CodeQuestion(TypedDict):
    """Names of files, answered by their digests; a channel for signs of life; whether stdout goes to the log."""

    names: list[str]
    health: Any
    redirect: bool


class ServiceOrder(TypedDict):
    """``module:function`` of the service, and its encoded argument."""

    service: str
    argument: bytes


class ServiceReport(TypedDict, total=False):
    """How the start, or the service itself, ended. ``error``: see ``exception_text.describe_exception``."""

    state: Literal["ready", "failed", "returned"]
    error: dict[str, str]
