"""What a process that serves tasks, its children and its parent send each other."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class Surroundings(TypedDict):
    """The first message to what runs behind a launcher prefix: variables it may be missing, its directory."""

    environ: dict[str, str]
    cwd: str


class PrepareOrder(TypedDict):
    """The first message to a zygote: fields of its ``ZygoteSpec``.

    With ``owner``, a descriptor of the process that has started it follows (``pidfd_open(2)``).
    """

    prepare: str
    argument: Any
    run: str
    sys_path: list[str]
    fresh: bool
    warm_up: str | None
    extend: str | None
    load: str | None
    orphaned: str | None
    concurrent: bool
    owner: bool


class StartReport(TypedDict, total=False):
    """How far a zygote has come; ``sec`` of what was loaded, ``error`` of what failed, the others of what is ready."""

    type: Literal["preparing", "loading", "loaded", "failed", "ready"]
    sec: float
    error: dict[str, str]
    info: dict[str, Any]
    against_forking: list[str]
    version: str


class ChildOrder(TypedDict):
    """The child that stood by was given a task, or was found dead and has to be replaced."""

    op: Literal["taken", "replace"]
    pid: int


class BranchOrder(TypedDict):
    """Fork a branch, and prepare it further if there is an ``extension``; descriptors of its two channels follow."""

    op: Literal["branch"]
    tag: str
    extension: Any


class ForkOrder(TypedDict):
    """Fork a child for a task; descriptors follow: of the channel that the task comes on, and of that of its fate."""

    op: Literal["fork"]


class KillOrder(TypedDict):
    """End the task that runs in process ``pid``."""

    op: Literal["kill"]
    pid: int
    grace: float


ServerOrder = ChildOrder | BranchOrder | ForkOrder | KillOrder


class Standby(TypedDict):
    """A child stands by; the descriptor of the channel to it follows."""

    type: Literal["standby"]
    pid: int


class ForkReport(TypedDict, total=False):
    """A child was forked, or why it could not be."""

    pid: int
    error: str


class TaskEnd(TypedDict):
    """The running task is over.

    ``returncode`` and ``max_rss_bytes`` are ``None`` where its process outlived SIGKILL; ``swept`` names the processes
    that it had left behind, ``unkillable`` those that could not be ended; ``at`` is in seconds since the epoch.
    """

    type: Literal["ended"]
    returncode: int | None
    max_rss_bytes: int | None
    swept: list[str]
    unkillable: list[str]
    at: float


class ExtensionReport(TypedDict, total=False):
    """A branch is prepared further, unless there was an exception, or something ``refused``, or ``against_forking``."""

    type: Literal["extended", "failed"]
    error: dict[str, str]
    refused: dict[str, Any]
    against_forking: list[str]


class BranchFate(TypedDict, total=False):
    """How a branch ended, or why it could not be forked. Empty when the zygote itself has gone."""

    returncode: int
    error: str


class ChildTask(TypedDict):
    """The task of a child. ``descriptors`` says how many follow.

    With ``hold``, a child that prepares itself does only that, and then waits for another one.
    """

    payload: Any
    hold: bool
    stdout: str | None
    stderr: str | None
    stacks: str | None
    cores: list[int] | None
    descriptors: int


class ChildReport(TypedDict, total=False):
    """What a child sends besides the messages of its task. ``phase`` is missing where the preparation failed."""

    type: Literal["loading", "loaded", "prepared", "failed", "done"]
    sec: float
    info: dict[str, Any]
    phase: Literal["launch"]
    error: dict[str, str]
