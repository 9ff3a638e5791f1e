"""Completions: what has become of one trial, or of one directory of a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Outcome = Literal["completed", "failed"]


@dataclass(frozen=True)
class TrialCompletion:
    """A trial file that was written.

    Attributes:
        action: name of the action.
        cell: environment and mitigation set.
        trial: index in the cell.
        exit_status: of the record; ``None`` when there is none any more.
        request: digest of what the recipe says of the cell, see ``workflow.requests``.
        sources: digests of the source files that the record names, by path.
    """

    action: str
    cell: str
    trial: int
    exit_status: str | None
    request: str
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CommandCompletion:
    """A directory on which a command has run, or in which its products were looked for.

    Attributes:
        action: name of the action.
        directory: name in the workspace.
        outcome: ``completed`` when all products are there, ``failed`` when a run has ended otherwise, ``None`` when
            there was no run.
    """

    action: str
    directory: str
    outcome: Outcome | None


Completion: TypeAlias = "TrialCompletion | CommandCompletion"
