"""What has become of an action on each of its units, and what may be done next.

A unit is what an action is complete on or not: a directory of the workspace, or a trial ``CELL/INDEX``, a cell
``CELL``, or the whole matrix ``""`` of an action with a workload. Units of such an action contain each other, as paths
do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pytest_aorta.workflow.actions import Action


class State(str, Enum):
    """The state of an action on a unit, in the order of columns; ``_state`` has the order in which they are tried."""

    COMPLETED = "completed"
    FAILED = "failed"
    STALE = "stale"
    SUBMITTED = "submitted"
    ELIGIBLE = "eligible"
    WAITING = "waiting"


@dataclass(frozen=True)
class Progress:
    """How far one action is.

    Attributes:
        units: all of them.
        completed: those that have ended as expected.
        failed: those that have ended otherwise.
        without_result: of the failed ones, those that say nothing of the workload and are run again.
        stale: those whose result is of another request.
        submitted: those that a scheduler has.
    """

    units: Sequence[str]
    completed: Collection[str] = frozenset()
    failed: Collection[str] = frozenset()
    without_result: Collection[str] = frozenset()
    stale: Collection[str] = frozenset()
    submitted: Collection[str] = frozenset()


@dataclass(frozen=True)
class Open:
    """The units of an action for which its followers have to wait, counted for each unit that contains them."""

    units: Collection[str] = frozenset()
    within: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, units: Collection[str]) -> Open:
        """Of these units."""
        return cls(units, Counter(outer for unit in units for outer in containing(unit)))

    def touches(self, unit: str) -> bool:
        """Whether one of them is ``unit``, or lies in it, or contains it."""
        return bool(self.within.get(unit)) or any(outer in self.units for outer in containing(unit))


def containing(unit: str) -> Iterator[str]:
    """A unit and those that contain it."""
    yield unit
    while unit:
        unit = unit.rpartition("/")[0]
        yield unit


def open_for(follower: Action, action: Action, progress: Progress) -> Open:
    """The units of ``action`` that ``follower`` has to wait for.

    What works on a cell or a matrix of trials needs results, whatever they say; anything else needs what it follows
    to be completed.
    """
    done = set(progress.completed)
    if action.is_matrix and follower.table.each in ("cell", "matrix"):
        done.update(set(progress.failed) - set(progress.without_result))
    return _seen_from(follower, action, [unit for unit in progress.units if unit not in done])


def failed_for(follower: Action, action: Action, progress: Progress) -> Open:
    """The units of ``action`` whose failure keeps ``follower`` from being run."""
    if action.is_matrix and follower.table.each in ("cell", "matrix"):
        return _seen_from(follower, action, progress.without_result)
    return _seen_from(follower, action, progress.failed)


def _seen_from(follower: Action, action: Action, units: Collection[str]) -> Open:
    """Units of ``action`` for a follower: for one that has units of another kind, it is one whole."""
    directories = [each.table.each == "directory" and not each.is_matrix for each in (follower, action)]
    if units and (follower.is_matrix or directories[0] != directories[1]):
        return Open.of({""})
    return Open.of(units)


def classified(progress: Progress, previous: Sequence[Open]) -> dict[str, State]:
    """Each unit's state; ``previous``: what the previous actions have left open for this one."""
    waits = [each for each in previous if each.units]
    return {unit: _state(unit, progress, waits) for unit in progress.units}


def _state(unit: str, progress: Progress, waits: Sequence[Open]) -> State:
    if unit in progress.completed:
        return State.COMPLETED
    if unit in progress.submitted:
        return State.SUBMITTED
    if unit in progress.failed:
        return State.FAILED
    if unit in progress.stale:
        return State.STALE
    return State.WAITING if any(each.touches(unit) for each in waits) else State.ELIGIBLE
