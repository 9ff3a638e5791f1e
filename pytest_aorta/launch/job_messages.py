"""What an engine sends to the jobs on its hosts, what a job emits, and what it raises."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from typing_extensions import NotRequired

from pytest_aorta.launch.environment import Inherited
from pytest_aorta.runtime.records import TaskRecord
from pytest_aorta.trials.events import Phase
from pytest_aorta.trials.spec import TrialSpec


@dataclass(frozen=True)
class TrialOrder:
    """The payload of a job: one trial.

    Attributes:
        spec: what to run.
        folder: for the trial's artifacts; a name alone, when the results belong to another host.
        timeout: deadline in seconds that overrides the spec's.
        inherited: what the trial has of the process that asks for it; ``None`` for that of the host's worker.
    """

    spec: TrialSpec
    folder: Path
    timeout: float | None = None
    inherited: Inherited | None = None


class PhaseEnded(TypedDict):
    """A phase, or the trial during it, has ended."""

    type: Literal["phase"]
    phase: Literal["setup", "run"]
    failed: bool


class WarningIssued(TypedDict):
    """A warning for the user."""

    type: Literal["warning"]
    text: str


class FilePiece(TypedDict):
    """The next bytes of a file in the trial's folder, where the results belong to another host."""

    type: Literal["file"]
    name: str
    data: bytes


class PackagesListed(TypedDict):
    """All distributions that are installed where the trial runs; see ``probe.packages.package_list``."""

    type: Literal["packages"]
    listing: dict[str, Any]


JobEvent = PhaseEnded | WarningIssued | FilePiece | PackagesListed


class Hang(TypedDict):
    """The fields of an ``ImportHang``."""

    limit: float
    stacks: str
    output: str


class BrokenCell(TypedDict):
    """Why the trials of a cell cannot be started.

    ``kind`` is the name of an exception; ``phase``, ``error`` and ``returncode`` are those of a ``ZygoteError``, and
    ``hang`` is there where the import took too long.
    """

    kind: str
    message: str
    phase: Phase
    error: dict[str, str] | None
    returncode: int | None
    hang: NotRequired[Hang]


def broken_cell(record: TaskRecord) -> BrokenCell | None:
    """What a job has raised as ``host.service.CellBroken``."""
    details = record.failure.details if record.failure is not None else {}
    return cast(BrokenCell, details) if "returncode" in details else None
