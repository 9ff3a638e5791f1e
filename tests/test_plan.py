"""From a selection to the plan: which trials there are, in which order, with which variables, in which files."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.plans import SPEC, entry, environment, grid, grids, mitigation

from pytest_aorta import RunRequest
from pytest_aorta.plan import (
    WARM_CELLS,
    Order,
    Plan,
    PlanError,
    Selection,
    make_plan,
    ordered,
    overlay,
    trials_of,
    turns_of_round,
)
from pytest_aorta.registry import Registry
from pytest_aorta.triage import Stop
from pytest_aorta.trials.spec import TrialSpec

ORDERS: tuple[Order, ...] = get_args(Order)


def names(trials: Any) -> list[str]:
    return [spec.item_name for spec in trials]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Built-ins, what is installed, and some names of this test."""
    sidecar = tmp_path / "registry.json"
    sidecar.write_text(
        json.dumps(
            {
                "version": 1,
                "mitigations": {"a": {"X": "a", "A": "1"}, "b": {"X": "b"}, "b-c": {}, "c": {}, "größe": {"X": "g"}},
                "environments": {"e": {"env": {"X": "e", "E": "1"}}, "e-b": {}, "two words": {}},
            }
        )
    )
    return Registry.load([sidecar])


# which trials


def test_a_plan_is_the_product_of_workloads_environments_and_mitigation_sets(registry: Registry) -> None:
    selection = Selection(
        workloads=("gemm", "fsdp"),
        trials=2,
        environments=("local", "e"),
        mitigations=(("none",), ("a", "b")),
        order="grouped",
    )

    plan = make_plan(selection, registry)

    assert names(plan.trials) == [
        f"{workload}[{cell}-{index}]"
        for workload in ("gemm", "fsdp")
        for cell in ("local-none", "local-a+b", "e-none", "e-a+b")
        for index in (0, 1)
    ]
    cells = {workload: list(found) for workload, found in plan.cells.items()}
    assert cells == {workload: ["local-none", "local-a+b", "e-none", "e-a+b"] for workload in ("gemm", "fsdp")}


def test_each_trial_can_say_how_its_plan_was_put_in_order(registry: Registry) -> None:
    def order(**fields: Any) -> str:
        selection = Selection(workloads=("gemm",), mitigations=(("none",), ("a",)), **fields)
        (found,) = {spec.order for spec in make_plan(selection, registry).trials}
        return found

    assert order(trials=3).startswith("interleaved, seed ")
    assert order(trials=3) == order(trials=4) != order(trials=3, environments=("e",))
    assert order(order="random").startswith("random, seed ")
    assert order(order="grouped") == "grouped"


def test_two_cells_that_would_read_the_same_are_refused(registry: Registry) -> None:
    selection = Selection(workloads=("gemm",), environments=("e", "e-b"), mitigations=(("b-c",), ("c",)))

    with pytest.raises(PlanError) as caught:
        make_plan(selection, registry)

    assert str(caught.value) == (
        "environment 'e' with mitigations 'b-c' and environment 'e-b' with mitigations 'c' "
        "would both be called 'e-b-c'; rename one of them, or run them apart"
    )


_SCRIPT = """
from dataclasses import replace
from pytest_aorta.plan import Selection, make_plan
from pytest_aorta.registry import Registry
from pytest_aorta.trials.spec import fingerprint, fingerprint_parts
selection = Selection(
    workloads=("gemm", "fsdp"), trials=3, mitigations=(("none",), ("xnack",), ("xnack", "none")),
    config={"b": "1", "a": "2", "kinds": {"x", "y", "z"}}, extra_env={"Y": "1", "X": "2"},
)
for order in ("random", "grouped", "interleaved"):
    plan = make_plan(replace(selection, order=order), Registry.load())
    print(plan.digest, {workload: list(found) for workload, found in plan.cells.items()})
    for spec in plan.trials:
        taken = fingerprint(fingerprint_parts(spec, 1))
        print(spec.item_name, spec.trial_id, plan.paths(spec).file, spec.overlay, taken)
"""


def test_every_process_makes_the_same_plan_and_the_same_fingerprints() -> None:
    made = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(made) == 1


# with which variables


def test_variables_of_the_environment_yield_to_mitigations_in_order_and_those_to_the_extra_ones() -> None:
    here = environment(A="environment", B="environment", C="environment", D="environment")
    sets = [mitigation("one", B="one", C="one", D="one"), mitigation("two", C="two", D="two")]

    assert overlay(here, sets, {"D": "extra"}) == {"A": "environment", "B": "one", "C": "two", "D": "extra"}
    assert overlay(here, sets[::-1], {})["C"] == "one"


def test_variables_are_not_shown_where_a_plan_or_a_trial_of_it_is() -> None:
    given = {"API_TOKEN": "hunter2"}
    shown = [Selection(extra_env=given), replace(SPEC, overlay=given), RunRequest("w", 1, extra_env=given)]

    assert "hunter2" not in repr(shown)


@pytest.mark.parametrize("source", ["environment 'here'", "mitigation 'bad'", "the extra variables"])
def test_variables_that_the_launcher_sets_cannot_be_overlaid(source: str) -> None:
    bundle = {"RANK": "0"}
    here = environment(**bundle) if "environment" in source else environment()
    sets = [mitigation("good", X="1"), *([mitigation("bad", **bundle)] if "mitigation" in source else [])]

    with pytest.raises(PlanError, match=rf"^{source}: RANK is set by the launcher"):
        overlay(here, sets, bundle if "extra" in source else {})


# in which files


any_name = st.text(alphabet=st.characters(codec=None), max_size=6) | st.text(alphabet="ab-+/", max_size=4)


@given(
    st.lists(any_name, min_size=1, max_size=2, unique=True),
    st.lists(any_name, min_size=1, max_size=3, unique=True),
    st.lists(st.lists(any_name, max_size=2).map(tuple), min_size=1, max_size=3, unique=True),
    st.integers(1, 2),
    st.sampled_from(ORDERS),
)
@example(["a/b", "a_b"], ["local"], [("x",)], 1, "grouped")
@example(["w"], ["a", "a-b"], [("b-c",), ("c",)], 1, "grouped")
@example(["w"], ["a"], [("b+c",), ("b", "c")], 1, "grouped")
@example(["w"], ["a"], [("b,c",), ("b", "c")], 1, "grouped")
def test_whatever_the_names_are_trials_stay_apart_or_are_refused(
    workloads: list[str], environments: list[str], sets: list[tuple[str, ...]], trials: int, order: Order
) -> None:
    selection = Selection(trials=trials, environments=tuple(environments), mitigations=tuple(sets))
    names_only = cast(
        Registry,
        SimpleNamespace(environment=lambda name: environment(name), mitigation=lambda name: mitigation(name)),
    )
    try:
        cells = trials_of([entry(name) for name in workloads], selection, names_only)
    except PlanError:
        return

    plan = Plan(ordered(cells, order))

    assert len(plan.trials) == len(workloads) * len(environments) * len(sets) * trials
    assert all(re.fullmatch(r"[\w.+=~-]+\[[\w.+=~-]+-[01]\]", spec.item_name, re.ASCII) for spec in plan.trials)
    for key in ("item_name", "trial_id"):
        assert len({getattr(spec, key) for spec in plan.trials}) == len(plan.trials)
    files = {plan.paths(spec).file for spec in plan.trials}
    folders = {plan.paths(spec).folder for spec in plan.trials}
    assert len(files | folders) == 2 * len(plan.trials)
    # What one trial leaves in its folder is never another one's.
    assert not any(folder in file.parents for file in files for folder in folders)


# in which order


@given(st.integers(1, WARM_CELLS), st.text())
def test_in_as_many_rounds_as_there_are_cells_each_has_each_place_once(cells: int, seed: str) -> None:
    assert turns_of_round(0, cells, seed) == [*range(cells)]
    for square in range(3):
        rounds = [turns_of_round(square * cells + row, cells, seed) for row in range(cells)]
        for turns in (*rounds, *zip(*rounds, strict=True)):
            assert sorted(turns) == [*range(cells)]


def test_what_repeats_in_step_with_the_rounds_does_not_hit_one_cell_alone() -> None:
    # As a device of several does, where trials take turns on them: a fault in each second (third, ...) trial.
    for cells, period in itertools.product(range(2, WARM_CELLS + 1), range(2, 9)):
        trials = ordered(grid(1, 1, cells, 40 * cells), "interleaved")
        hit = Counter(spec.cell for spec in trials[::period])
        expected = 40 * cells / period
        assert all(abs(hit[spec.cell] - expected) < 0.3 * expected + 8 for spec in trials[:cells])


def test_after_a_cell_comes_any_other() -> None:
    trials = ordered(grid(1, 1, 4, 400), "interleaved")
    pairs = Counter((one.mitigation_index, two.mitigation_index) for one, two in itertools.pairwise(trials))

    assert all(pairs[one, two] > 60 for one, two in itertools.permutations(range(4), 2))


@given(st.integers(1, WARM_CELLS + 2), st.integers(1, 6), st.integers(1, 6))
def test_more_trials_leave_the_order_of_the_others_as_it_is(cells: int, few: int, more: int) -> None:
    few_of_each, more_of_each = (ordered(grid(1, 1, cells, count), "interleaved", 1) for count in (few, few + more))

    assert names(more_of_each)[: len(few_of_each)] == names(few_of_each)


def test_beyond_the_bound_of_warm_cells_blocks_of_cells_are_interleaved() -> None:
    count = 2 * WARM_CELLS + 1
    trials = ordered(grid(1, 1, count, 2), "interleaved")

    first, second, last = trials[: 2 * WARM_CELLS], trials[2 * WARM_CELLS : 4 * WARM_CELLS], trials[4 * WARM_CELLS :]
    for block, start in ((first, 0), (second, WARM_CELLS)):
        assert [spec.mitigation_index for spec in block[:WARM_CELLS]] == [*range(start, start + WARM_CELLS)]
        assert {spec.mitigation_index for spec in block[WARM_CELLS:]} == {*range(start, start + WARM_CELLS)}
    assert [(spec.mitigation_index, spec.trial_index) for spec in last] == [(count - 1, 0), (count - 1, 1)]


def test_where_a_run_may_end_early_blocks_of_cells_take_turns() -> None:
    cells = grid(1, 1, WARM_CELLS + 1, 2 * WARM_CELLS)
    for selection, turns in ((Selection(stop=Stop(decided=True)), WARM_CELLS), (Selection(stop=Stop(seconds=1.0)), 1)):
        found = [(spec.mitigation_index, spec.trial_index) for spec in ordered(cells, "interleaved", selection.turns)]
        expected = [
            [(cell, index) for cell in block]
            for first in range(0, 2 * WARM_CELLS, turns)
            for block in (range(WARM_CELLS), [WARM_CELLS])
            for index in range(first, first + turns)
        ]
        rounds = iter(found)
        assert [sorted(itertools.islice(rounds, len(each))) for each in expected] == expected


@given(grids, st.sampled_from(ORDERS))
def test_every_order_has_every_trial_once_and_is_always_the_same(cells: list[list[TrialSpec]], order: Order) -> None:
    trials = ordered(cells, order)

    assert sorted(names(trials)) == sorted(spec.item_name for cell in cells for spec in cell)
    assert ordered(cells, order) == trials
    assert Plan(trials).digest == Plan(ordered(cells, order)).digest


@given(grids)
def test_interleaved_needs_at_most_the_bound_of_cells_at_a_time(cells: list[list[TrialSpec]]) -> None:
    trials = ordered(cells, "interleaved")
    labels = [(spec.workload.name, spec.cell) for spec in trials]

    for label in set(labels):
        first, last = labels.index(label), len(labels) - 1 - labels[::-1].index(label)
        assert len(set(labels[first : last + 1])) <= WARM_CELLS
