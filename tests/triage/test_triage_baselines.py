from __future__ import annotations

import pytest
from support.triage_facts import trials

from pytest_aorta.settings import RequestError
from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.verdicts import Baselines, Triage, check_baseline, choose_baselines


def cells(*of: list[TrialFacts]) -> list[CellStatistics]:
    triage = Triage()
    for facts in (each for found in of for each in found):
        triage.add(facts)
    return [cell.statistics for cell in triage.cells]


def chosen(found: Baselines) -> dict[str, str]:
    """Which cell each is compared with, by name."""
    return {key.cell: base.cell for key, base in found.of.items()}


def in_environments(*mitigations: str) -> list[CellStatistics]:
    """Each mitigation set in two environments, in the order of a plan."""
    return cells(*(trials(name, "..", environment=place) for place in ("local", "rocm7") for name in mitigations))


def test_each_set_is_compared_within_its_environment_and_the_baseline_with_that_of_the_first() -> None:
    found = choose_baselines(in_environments("a", "none", "b"))
    assert chosen(found) == {
        "local-a": "local-none",
        "local-b": "local-none",
        "rocm7-a": "rocm7-none",
        "rocm7-none": "local-none",
        "rocm7-b": "rocm7-none",
    }
    assert {key.cell for key in found.cells} == {"local-none", "rocm7-none"}


def test_a_cell_that_is_called_baseline_comes_first() -> None:
    found = choose_baselines(
        cells(
            trials("none", ".."),
            trials("a", ".."),
            trials("b", "..", environment="baseline-rocm6"),
            trials("none", "..", environment="baseline-rocm6"),
        )
    )
    assert {key.cell for key in found.cells} == {"baseline-rocm6-b"}
    assert set(chosen(found).values()) == {"baseline-rocm6-b"}


def test_without_an_empty_set_the_first_cell_is_the_baseline() -> None:
    assert chosen(choose_baselines(cells(trials("b", ".."), trials("a", "..")))) == {"local-a": "local-b"}


@pytest.mark.parametrize("wanted", ["a,b", "a+b"])
def test_a_set_that_was_asked_for_is_the_baseline_in_each_environment(wanted: str) -> None:
    found = choose_baselines(in_environments("none", "a,b"), wanted)
    assert chosen(found) == {"local-none": "local-a+b", "rocm7-none": "rocm7-a+b", "rocm7-a+b": "local-a+b"}


def test_a_cell_that_was_asked_for_is_the_baseline_of_all() -> None:
    found = choose_baselines(in_environments("none", "a"), "rocm7-none")
    assert set(chosen(found).values()) == {"rocm7-none"}
    assert len(found.of) == 3


def test_a_baseline_that_did_not_run_is_passed_over_unless_it_was_asked_for() -> None:
    found = cells(trials("none", "--"), trials("a", "-."), trials("b", ".."))
    assert chosen(choose_baselines(found)) == {"local-none": "local-a", "local-b": "local-a"}
    assert chosen(choose_baselines(found, "none")) == {"local-a": "local-none", "local-b": "local-none"}


def test_where_nothing_ran_there_is_no_baseline() -> None:
    assert choose_baselines(cells(trials("none", "--"), trials("a", "--"))) == Baselines({}, ())


def test_workloads_are_not_compared_with_each_other() -> None:
    found = choose_baselines(
        cells(*(trials(name, "..", workload=workload) for name in ("none", "a") for workload in ("gemm", "fsdp")))
    )
    assert {(key.workload, base.workload) for key, base in found.of.items()} == {("gemm", "gemm"), ("fsdp", "fsdp")}
    assert len(found.cells) == 2


@pytest.mark.parametrize("wanted", ["local-a+b", "a,b", "a+b", "none"])
def test_a_cell_of_the_plan_may_be_asked_for(wanted: str) -> None:
    check_baseline(wanted, [("local-none", ["none"]), ("local-a+b", ["a", "b"])])


@pytest.mark.parametrize("wanted", ["b,a", "rocm7-none", ""])
def test_another_one_is_refused_with_the_names_that_there_are(wanted: str) -> None:
    with pytest.raises(RequestError) as refusal:
        check_baseline(wanted, [("local-none", ["none"]), ("local-a+b", ["a", "b"])])
    assert str(refusal.value) == (f"--aorta-baseline: there is no cell {wanted!r}; there are local-none, local-a+b")
