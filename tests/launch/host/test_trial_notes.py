"""Notes on what a trial has left running, and on how its worker group has changed."""

from __future__ import annotations

from pytest_aorta.launch.host.process_trial import leftover_notes, membership_notes
from pytest_aorta.runtime.zygote import TaskEnd
from pytest_aorta.trials.records import GroupState, GroupStateName


def ended(swept: list[str], unkillable: list[str]) -> TaskEnd:
    return TaskEnd(0, swept=swept, unkillable=unkillable)


def state(attempt: int, size: int, name: GroupStateName = "HEALTHY") -> GroupState:
    return GroupState(name, 0.0, attempt, size)


def test_what_has_outlived_the_trial_is_named() -> None:
    assert leftover_notes(ended([], [])) == []
    assert leftover_notes(ended(["sleep (pid 7)"], ["dd (pid 8)"])) == [
        "sleep (pid 7) was left running, and ended",
        "dd (pid 8) could not be ended",
    ]


def test_of_many_processes_the_first_are_named() -> None:
    ten = [f"sleep (pid {number})" for number in range(10)]
    assert leftover_notes(ended(ten, [])) == [f"{name} was left running, and ended" for name in ten]
    assert leftover_notes(ended([*ten, "a"], []))[10:] == ["1 more was left running, and ended"]
    assert leftover_notes(ended([*ten, "a", "b"], []))[10:] == ["2 more were left running, and ended"]
    assert leftover_notes(ended([], [*ten, "a", "b"]))[10:] == ["2 more could not be ended"]


def test_changes_of_the_worker_group_are_noted() -> None:
    states = [state(0, 2), state(0, 2, "FAILED"), state(1, 2), state(2, 4), state(2, 9, "STOPPED"), state(3, 2)]
    assert membership_notes(states) == [
        "from attempt 2 on, 4 ranks instead of 2",
        "from attempt 3 on, 2 ranks instead of 4",
    ]
