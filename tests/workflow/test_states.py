"""States of actions on their units, what their followers wait for, and the cost of what is left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import SPEC
from support.recipes import recipe_of

from pytest_aorta.launch.record import lost_record
from pytest_aorta.trials.records import Failure
from pytest_aorta.workflow.known import RequestDigests
from pytest_aorta.workflow.project import (
    Blocked,
    Progress,
    Project,
    State,
    blocked_for,
    containing,
    waited_for,
)
from pytest_aorta.workflow.recipe import Action, ActionTable
from pytest_aorta.workflow.requests import CellRequest, request_digest, trial_completion

RECIPE = recipe_of(
    """
    [[action]]
    name = "first"
    workload = "gemm"
    trials = 3
    mitigations = ["none", "tf32_off"]

    [[action]]
    name = "second"
    workload = "gemm"
    trials = 2
    expect = "fail"
    previous_actions = ["first"]

    [[action]]
    name = "cells"
    command = "x {folder}"
    products = ["y"]
    each = "cell"
    previous_actions = ["first"]

    [[action]]
    name = "all"
    command = "x {folder}"
    each = "matrix"
    previous_actions = ["cells", "second"]

    [[action]]
    name = "trials"
    command = "x {folder}"
    products = ["y"]
    each = "trial"
    previous_actions = ["first"]

    [[action]]
    name = "plain"
    command = "x {directory}"
    products = ["y"]
    """
)
REQUESTS = {
    "first": {cell: CellRequest(f"now {cell}", {"cell": cell}, ("gemm", cell)) for cell in ("a", "b")},
    "second": {"a": CellRequest("now a", {"cell": "a"}, ("gemm", "a"))},
}
MATRIX = Action("matrix", ActionTable(workload="gemm"), 1)

#: Action, unit, and how it has ended with which request.
TRIALS = st.tuples(
    st.sampled_from(["first", "second"]),
    st.sampled_from([f"{cell}/{index}" for cell in ("a", "b", "gone") for index in range(4)]),
    st.sampled_from(["ok", "workload_failed", "timeout", "infrastructure_failed"]),
    st.sampled_from(["now a", "now b", "earlier"]),
)


def project(completed: Mapping[str, Mapping[str, tuple[str, str]]] = {}) -> Project:
    """With completions, of which a trial's has the digest of its request."""
    found = Project(RECIPE, fresh=True)
    found.requests = REQUESTS
    found.workspace._names = ["d0", "d1"]
    for action, units in completed.items():
        for unit, (outcome, digest) in units.items():
            request = RequestDigests(digest=digest)
            found.workspace.known.requests[request.key] = request
            key = request.key if digest else ""
            found.workspace.known.completed.setdefault(action, {})[unit] = (outcome, key)  # type: ignore[assignment]
    return found


def action(name: str) -> Action:
    return RECIPE.by_name[name][0]


@settings(max_examples=60, deadline=None)
@given(st.lists(TRIALS, max_size=25))
def test_a_trial_is_what_its_record_says_unless_something_else_is_asked_for(records: list[Any]) -> None:
    completed: dict[str, dict[str, tuple[str, str]]] = {"first": {}, "second": {}}
    for name, unit, status, digest in records:
        completed[name][unit] = (status, digest)
    found = project(completed)
    for name, expected in (("first", ["ok"]), ("second", ["workload_failed", "timeout"])):
        states = found.states(action(name))
        assert found.summary(action(name))[0] == {**dict.fromkeys(get_args(State), 0), **Counter(states.values())}
        for unit, state in states.items():
            record = completed[name].get(unit)
            if record is None:
                assert state in ("eligible", "waiting")
            elif record[1] != f"now {unit[0]}":
                assert state == "stale"
            else:
                other = ["failed"] if record[0] != "infrastructure_failed" else ["eligible", "waiting"]
                assert state in (["completed"] if record[0] in expected else other)


def test_units_contain_each_other_as_paths_do() -> None:
    assert list(containing("a-b/3")) == ["a-b/3", "a-b", ""]
    assert list(containing("")) == [""]
    cells = Blocked(["a/0", "b/1"])
    touched = {"": True, "a": True, "a/0": True, "a/1": False, "ab": False, "b": True, "c": False}
    assert {unit: cells.touches(unit) for unit in touched} == touched
    assert Blocked([""]).touches("a/0")
    assert not Blocked().touches("")


def test_followers_of_a_matrix() -> None:
    cases: list[tuple[str | None, str, dict[str, Progress], bool]] = [
        # A comparison of a cell needs the results of that cell, failures among them.
        ("cell", "a", {"a/0": "completed", "a/1": "failed"}, False),
        ("cell", "b", {"a/0": "completed", "b/1": "open"}, True),
        ("cell", "a", {"a/0": "completed", "a/1": "without_result"}, True),
        ("cell", "a", {"a/0": "completed", "a/1": "not_needed"}, False),
        ("matrix", "", {"a/0": "completed", "b/0": "failed"}, False),
        ("matrix", "", {"a/0": "completed", "b/0": "stale"}, True),
        # What follows single trials, and a matrix after a matrix, need them to be as expected.
        ("trial", "a/0", {"a/0": "completed", "a/1": "open"}, False),
        ("trial", "a/1", {"a/0": "completed", "a/1": "failed"}, True),
        (None, "x/0", {"a/0": "completed", "b/1": "failed"}, True),
        (None, "x/0", {"a/0": "completed", "b/1": "completed"}, False),
    ]
    for each, unit, progress, waits in cases:
        keys = {"workload": "gemm"} if each is None else {"command": "x {folder}", "each": each}
        follower = Action("after", ActionTable.model_validate(keys), 1)
        blocked = blocked_for(follower, MATRIX, waited_for(follower, MATRIX, progress))
        assert blocked.touches(unit) == waits


def test_units_of_a_command_are_those_of_the_nearest_matrix_before_it() -> None:
    found = project()
    assert RECIPE.matrix_before(action("all")) is action("second")
    assert list(found.units(action("cells"))) == ["a", "b"]
    assert list(found.units(action("all"))) == [""]
    assert list(found.units(action("trials"))) == [f"{cell}/{n}" for cell in "ab" for n in range(3)]
    assert found.units(action("plain")) == ["d0", "d1"]
    assert found.value_of(action("first"))("b/2") == {"cell": "b", "trial": 2}
    assert found.value_of(action("cells"))("b") == {"cell": "b"}
    assert found.value_of(action("all"))("") == {"workload": "gemm", "config": {}}


def test_a_trial_that_says_nothing_of_the_workload_still_costs_and_one_that_failed_does_not() -> None:
    statuses = ["ok", "workload_failed", "infrastructure_failed"]
    found = project({"first": {f"a/{number}": (status, "now a") for number, status in enumerate(statuses)}})
    assert found.summary(action("first"))[1].cpu_hours == 4
    assert found.summary(action("first"), {"a"})[1].cpu_hours == 1


def test_what_the_next_submission_runs() -> None:
    found = project({"first": {"a/0": ("ok", "now a"), "a/1": ("timeout", "now a"), "a/2": ("ok", "earlier")}})
    units, others = found.runnable(action("first"))
    assert units == ["a/2", "b/0", "b/1", "b/2"]
    assert others == {"completed": 1, "failed": 1}
    assert found.runnable(action("second")) == ([], {"waiting": 2})


LOST: Failure = Failure(phase="launch", kind="signal", message="its xdist worker was killed")

SPECS = {
    "plain": SPEC,
    "variables": replace(SPEC, overlay={"OMP_NUM_THREADS": "1", "API_TOKEN": "hunter2"}),
    "options": replace(SPEC, overrides={"lr": float("nan"), "sizes": (1, 2)}, steps=7),
    "ranks": replace(SPEC, execution=replace(SPEC.execution, nproc=2, seed=3, launcher="torchrun")),
}


def test_a_lost_trial_counts_for_the_cell_as_it_is_planned_and_for_no_other() -> None:
    digests = set()
    for spec in SPECS.values():
        completion = trial_completion(json.loads(json.dumps(lost_record(spec, LOST).to_dict(), allow_nan=False)))
        assert completion is not None
        assert (completion[1], completion[2].digest) == ("infrastructure_failed", request_digest(spec))
        digests.add(completion[2].digest)
    assert len(digests) == len(SPECS)
