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

#: How trials end, as their records say it, and the letter that stands for that.
LETTERS: Mapping[str, str] = {"ok": "o", "workload_failed": "f", "timeout": "t", "infrastructure_failed": "i"}

#: Trials of a cell that an index can hold: each index up to the highest has a byte.
MOST_TRIALS = 10**7


def is_valid(completion: Completion) -> bool:
    """Whether the values of a completion that was read have the types, and the range, that they are said to have."""
    if isinstance(completion, CommandCompletion):
        texts: tuple[object, ...] = (completion.action, completion.directory)
        return _are_texts(*texts) and completion.outcome in ("completed", "failed", None)
    return (
        _are_texts(completion.action, completion.cell, completion.request)
        and type(completion.trial) is int
        and 0 <= completion.trial < MOST_TRIALS
        and completion.exit_status in (*LETTERS, None)
        and isinstance(completion.sources, dict)
        and _are_texts(*completion.sources, *completion.sources.values())
    )


def _are_texts(*values: object) -> bool:
    return all(type(value) is str for value in values)
