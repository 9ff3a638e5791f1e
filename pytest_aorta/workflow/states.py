"""What has become of an action on each of its units, and what may be done next.

A unit is what an action is complete on or not: a directory of the workspace, or a trial ``CELL/INDEX``, a cell
``CELL``, or the whole matrix ``""`` of an action with a workload. Units of such an action contain each other, as paths
do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Literal

from pytest_aorta.workflow.recipe import Action


class State(str, Enum):
    """The state of an action on a unit, in the order of columns."""

    COMPLETED = "completed"
    FAILED = "failed"
    STALE = "stale"
    SUBMITTED = "submitted"
    ELIGIBLE = "eligible"
    WAITING = "waiting"


#: How far a unit is by itself. A trial that is ``without_result`` says nothing of the workload, and is run again; one
#: that is ``not_needed`` is not run, because its cell is decided; ``stale`` has a result of another request.
Progress = Literal["completed", "failed", "without_result", "stale", "submitted", "not_needed", "open"]


def containing(unit: str) -> Iterator[str]:
    """A unit and those that contain it."""
    yield unit
    while unit:
        unit = unit.rpartition("/")[0]
        yield unit


class Blocked:
    """The units of an action for which a follower has to wait."""

    def __init__(self, units: Iterable[str] = ()) -> None:
        self.units = frozenset(units)
        self._within = {outer for unit in self.units for outer in containing(unit)}

    def touches(self, unit: str) -> bool:
        """Whether one of them is ``unit``, or lies in it, or contains it."""
        return unit in self._within or any(outer in self.units for outer in containing(unit))


def waited_for(follower: Action, action: Action, progress: Mapping[str, Progress]) -> list[str]:
    """The units of ``action`` that ``follower`` has to wait for.

    What works on a cell or a matrix of trials needs results, whatever they say; anything else needs what it follows
    to be completed.
    """
    done = {"completed"}
    if action.is_matrix and (follower.is_matrix or follower.table.each != "trial"):
        done.add("not_needed")
    if action.is_matrix and follower.table.each in ("cell", "matrix"):
        done.add("failed")
    return [unit for unit, each in progress.items() if each not in done]


def blocked_for(follower: Action, action: Action, units: Sequence[str]) -> Blocked:
    """Units that were ``waited_for``. For a follower that has units of another kind, ``action`` is one whole."""
    on_directories = [each.table.each == "directory" and not each.is_matrix for each in (follower, action)]
    if units and (follower.is_matrix or on_directories[0] != on_directories[1]):
        return Blocked([""])
    return Blocked(units)


def states_of(progress: Mapping[str, Progress], previous: Sequence[Blocked]) -> dict[str, State]:
    """Each unit's state; ``previous``: what the action waits for. Units that are not needed are left out."""
    waits = [each for each in previous if each.units]
    over = {state.value: state for state in State}  # a call of the class for each of 100,000 takes a second
    found = {}
    for unit, each in progress.items():
        if each in ("open", "without_result"):
            waiting = waits and any(blocked.touches(unit) for blocked in waits)
            found[unit] = State.WAITING if waiting else State.ELIGIBLE
        elif each != "not_needed":
            found[unit] = over[each]
    return found
