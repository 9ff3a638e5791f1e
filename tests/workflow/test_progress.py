"""Trials are counted without names for each, and come out as by their names."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recipes import recipe_of

from pytest_aorta.workflow.cell_requests import CellRequest
from pytest_aorta.workflow.overview import Overview
from pytest_aorta.workflow.progress import Trials, matrix_before, previous_of, progress_of, state_counts
from pytest_aorta.workflow.states import State, classified, open_for
from pytest_aorta.workspace.index.cache import Index
from pytest_aorta.workspace.index.completions import CommandCompletion, TrialCompletion

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
    command = "x {directory}"
    products = ["y"]
    each = "cell"
    previous_actions = ["first"]

    [[action]]
    name = "all"
    command = "x {directory}"
    each = "matrix"
    previous_actions = ["cells", "second"]

    [[action]]
    name = "trials"
    command = "x {directory}"
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
DIRECTORIES = ["d0", "d1"]

SOURCES = st.sampled_from([{}, {"/w.py": "now"}, {"/w.py": "earlier"}])
COMPLETIONS = st.one_of(
    st.builds(
        TrialCompletion,
        st.sampled_from(["first", "second"]),
        st.sampled_from(["a", "b", "gone"]),
        st.integers(0, 4),
        st.sampled_from(["ok", "workload_failed", "timeout", "infrastructure_failed", None]),
        st.sampled_from(["now a", "now b", "earlier"]),
        SOURCES,
    ),
    st.builds(
        CommandCompletion,
        st.sampled_from(["cells", "all", "trials", "plain"]),
        st.sampled_from(["a", "b", "", "a/0", "b/1", "d0", "d1"]),
        st.sampled_from(["completed", "failed", None]),
    ),
)


def have_changed(sources: object) -> bool:
    """Whether the one source file is another one."""
    return sources == {"/w.py": "earlier"}


def state_of(unit: str, completions: dict[str, TrialCompletion], cell: str, expect: str) -> State | None:
    """The state of a trial by the definition of states, one at a time; ``None`` where it has no record."""
    record = completions.get(unit)
    if record is None:
        return None
    if record.request != f"now {cell}" or have_changed(record.sources):
        return State.STALE
    is_expected = {"pass": ["ok"], "fail": ["workload_failed", "timeout"]}[expect]
    return State.COMPLETED if record.exit_status in is_expected else State.FAILED


@settings(max_examples=60, deadline=None)
@given(st.lists(COMPLETIONS, max_size=25))
def test_states_are_those_of_the_last_record_of_each_trial(
    completions: list[TrialCompletion | CommandCompletion],
) -> None:
    index = Index()
    last: dict[str, dict[str, TrialCompletion]] = {"first": {}, "second": {}}
    for each in completions:
        index.add(each)
        if isinstance(each, TrialCompletion):
            of_action = last[each.action]
            of_action.pop(f"{each.cell}/{each.trial}", None)
            if each.exit_status is not None:
                of_action[f"{each.cell}/{each.trial}"] = each
    overview = Overview(RECIPE, index, REQUESTS, DIRECTORIES, lambda name: None, have_changed)
    compact = progress_of(RECIPE, index, REQUESTS, DIRECTORIES, have_changed)
    progress = {name: each.progress() if isinstance(each, Trials) else each for name, each in compact.items()}
    for action in RECIPE.actions:
        before = [open_for(action, RECIPE.by_name[name][0], progress[name]) for name in action.table.previous_actions]
        expected = classified(progress[action.name], before)
        assert overview.states(action) == expected
        counts = overview.summary(action).counts
        assert {state: count for state, count in counts.items() if count} == Counter(expected.values())
        if action.is_matrix:
            known = {unit: state_of(unit, last[action.name], unit[0], action.table.expect) for unit in expected}
            assert {unit: state for unit, state in known.items() if state is not None} == {
                unit: state for unit, state in expected.items() if state not in (State.ELIGIBLE, State.WAITING)
            }
    finished = {"completed", "failed"}
    for cell in "ab":
        records = [state_of(f"{cell}/{n}", last["first"], cell, "pass") for n in range(3)]
        without = any(
            last["first"][f"{cell}/{n}"].exit_status == "infrastructure_failed"
            for n in range(3)
            if f"{cell}/{n}" in last["first"]
        )
        may_run = all(state is not None and state.value in finished for state in records) and not without
        state = overview.states(RECIPE.by_name["cells"][0])[cell]
        assert (state is State.WAITING) is (not may_run) or state in (State.COMPLETED, State.FAILED)


def test_units_of_a_command_are_those_of_the_nearest_matrix_before_it() -> None:
    found = {name: matrix_before(actions[0], RECIPE) for name, actions in RECIPE.by_name.items()}
    assert {name: matrix and matrix.name for name, matrix in found.items()} == {
        "first": None,
        "second": "first",
        "cells": "first",
        "all": "second",
        "trials": "first",
        "plain": None,
    }
    overview = Overview(RECIPE, Index(), REQUESTS, DIRECTORIES, lambda name: name, have_changed)
    units = {name: list(overview.units(actions[0])) for name, actions in RECIPE.by_name.items()}
    assert units["cells"] == ["a", "b"]
    assert units["all"] == [""]
    assert units["trials"] == [f"{cell}/{n}" for cell in "ab" for n in range(3)]
    assert units["plain"] == DIRECTORIES
    values = {name: overview.value_of(actions[0]) for name, actions in RECIPE.by_name.items()}
    assert values["first"]("b/2") == {"cell": "b", "trial": 2}
    assert values["cells"]("b") == {"cell": "b"}
    assert values["all"]("") == {"workload": "gemm", "config": {}}
    assert values["plain"]("d1") == "d1"


def test_a_trial_that_says_nothing_of_the_workload_still_costs_and_one_that_failed_does_not() -> None:
    index = Index()
    for number, status in enumerate(["ok", "workload_failed", "infrastructure_failed"]):
        index.add(TrialCompletion("first", "a", number, status, "now a"))
    overview = Overview(RECIPE, index, REQUESTS, DIRECTORIES, lambda name: None, have_changed)
    first = RECIPE.by_name["first"][0]
    assert overview.summary(first).remaining.cpu_hours == 4
    assert overview.summary(first, {"a"}).remaining.cpu_hours == 1  # counted by names


@pytest.mark.parametrize("letters", [b"", b"cfis-", b"-----", b"ccccc"])
def test_counts(letters: bytes) -> None:
    trials = Trials({"a": letters, "b": letters})
    counts = state_counts(trials, previous_of(RECIPE.actions[0], RECIPE, {}))
    assert counts == {**dict.fromkeys(State, 0), **Counter(classified(trials.progress(), []).values())}
