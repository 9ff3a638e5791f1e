"""From a selection to the plan: which trials there are, in which order, with which variables, in which files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.plans import cell_of, entry, environment, mitigation

from pytest_aorta.plan import Order, Plan, PlanError, Selection, make_plan, ordered, overlay, trials_of
from pytest_aorta.registry import Registry, RegistryError

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
    assert plan.cells == {workload: ["local-none", "local-a+b", "e-none", "e-a+b"] for workload in ("gemm", "fsdp")}


@given(
    st.lists(st.text(max_size=6) | st.text(alphabet="a-+_.", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text(max_size=6),
    st.text(max_size=6),
)
def test_the_name_of_an_item_is_ascii_without_separators(
    mitigations: list[str], workload: str, environment_name: str
) -> None:
    (spec,) = cell_of(workload, environment_name, tuple(mitigations))

    assert re.fullmatch(r"[A-Za-z0-9_.+=~-]+\[[A-Za-z0-9_.+=~-]+-0\]", spec.item_name)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(workloads=("gemm",), environments=("e", "e")), "environment 'e' is given twice"),
        (Selection(workloads=("gemm",), mitigations=(("a", "b"), ("a", "b"))), "mitigation set 'a,b' is given twice"),
        (Selection(workloads=("gemm", "gemm")), "workload 'gemm' is given twice"),
        (Selection(workloads=("gemm",), trials=0), "the number of trials must be at least 1, not 0"),
    ],
)
def test_what_would_give_two_trials_of_one_name_is_refused(
    registry: Registry, selection: Selection, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(selection, registry)


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


@pytest.mark.parametrize(
    "selection",
    [
        Selection(workloads=("no_such_thing",)),
        Selection(workloads=("gemm",), environments=("no_such_thing",)),
        Selection(workloads=("gemm",), mitigations=(("none", "no_such_thing"),)),
        Selection(workloads=("gemm",), collect=("no_such_thing",)),
    ],
    ids=["workload", "environment", "mitigation", "collector"],
)
def test_an_unknown_name_is_refused_with_those_that_exist(
    registry: Registry, selection: Selection, request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.id

    with pytest.raises(RegistryError, match=rf"^unknown {kind} 'no_such_thing'; available: "):
        make_plan(selection, registry)


_SCRIPT = """
from dataclasses import replace
from pytest_aorta.plan import Selection, make_plan
from pytest_aorta.registry import Registry
from pytest_aorta.trials.fingerprint import Ingredients, fingerprint, fingerprint_parts
selection = Selection(
    workloads=("gemm", "fsdp"), trials=3, mitigations=(("none",), ("xnack",), ("xnack", "none")),
    config={"b": "1", "a": "2", "kinds": {"x", "y", "z"}}, extra_env={"Y": "1", "X": "2"},
)
for order in ("random", "grouped", "interleaved"):
    plan = make_plan(replace(selection, order=order), Registry.load())
    print(plan.digest, plan.cells)
    for spec in plan.trials:
        taken = fingerprint(fingerprint_parts(spec, Ingredients({}), 1))
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


OWNED = [
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
]


@pytest.mark.parametrize("name", OWNED)
@pytest.mark.parametrize("source", ["environment 'here'", "mitigation 'bad'", "the extra variables"])
def test_variables_that_the_launcher_sets_cannot_be_overlaid(name: str, source: str) -> None:
    bundle = {name: "0"}
    here = environment(**bundle) if "environment" in source else environment()
    sets = [mitigation("good", X="1"), *([mitigation("bad", **bundle)] if "mitigation" in source else [])]

    with pytest.raises(PlanError, match=rf"^{source}: {name} is set by the launcher"):
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
    for key in ("item_name", "trial_id"):
        assert len({getattr(spec, key) for spec in plan.trials}) == len(plan.trials)
    files = {plan.paths(spec).file for spec in plan.trials}
    folders = {plan.paths(spec).folder for spec in plan.trials}
    assert len(files | folders) == 2 * len(plan.trials)
    # What one trial leaves in its folder is never another one's.
    assert not any(folder in file.parents for file in files for folder in folders)
