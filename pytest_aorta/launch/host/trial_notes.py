"""Notes on what a trial has left running, and on how its worker group has changed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pytest_aorta.runtime.zygote import TaskEnd
from pytest_aorta.trials.events import GroupEvent

#: Processes that are named when they outlive their trial.
_NAMED = 10


def leftover_notes(ended: TaskEnd) -> list[str]:
    """One for each process that has outlived its trial; of many, the first, and how many more there are."""
    notes = []
    for left, one, many in (
        (ended.swept, "was left running, and ended", "were left running, and ended"),
        (ended.unkillable, "could not be ended", "could not be ended"),
    ):
        notes += [f"{name} {one}" for name in left[:_NAMED]]
        more = len(left) - _NAMED
        if more > 0:
            notes.append(f"{more} more {one if more == 1 else many}")
    return notes


def membership_notes(states: Sequence[GroupEvent]) -> list[str]:
    """One for each change of the worker group's size."""
    sizes = [(state["attempt"], state["world_size"]) for state in states if state["state"] == "HEALTHY"]
    return [
        f"from attempt {attempt} on, {after} ranks instead of {before}"
        for (_, before), (attempt, after) in itertools.pairwise(sizes)
        if before != after
    ]
