"""What a trial is called, whatever its workload, environment and mitigations are called."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_aorta.registry import Environment, WorkloadEntry
from pytest_aorta.trials.execution import Limits
from pytest_aorta.trials.fingerprint import Ingredients, fingerprint, fingerprint_parts
from pytest_aorta.trials.spec import TrialSpec

any_text = st.text(alphabet=st.characters(codec=None), max_size=20)
names = any_text | st.sampled_from(
    ["../up", "/etc/passwd", "nul\0", "two\nlines", "it's", '"', "🔥", "caf\udce9", "a::b", "a[b]", "-k", "x" * 5000]
)

HARMLESS = re.compile(r"[A-Za-z0-9_.+=~-]+\[[A-Za-z0-9_.+=~-]+-\d+\]")


def spec_of(workload: str, environment: str, mitigations: tuple[str, ...] = ("none",), index: int = 0) -> TrialSpec:
    return TrialSpec(
        workload=WorkloadEntry(workload, "module:Class", "test"),
        environment=Environment(environment, source_package="test"),
        mitigations=mitigations,
        overlay={},
        environment_index=0,
        mitigation_index=0,
        trial_index=index,
    )


@given(names, names, st.lists(names, min_size=1, max_size=3).map(tuple), st.integers(0, 10**6))
@example("", "", ("",), 0)
def test_an_item_s_name_is_printable_ascii_that_separates_nothing(
    workload: str, environment: str, mitigations: tuple[str, ...], index: int
) -> None:
    name = spec_of(workload, environment, mitigations, index).item_name

    assert HARMLESS.fullmatch(name)
    assert name.isprintable()
    assert not name.startswith(("-", "."))


@given(names, names, st.integers(0, 99), st.integers(0, 99))
def test_trials_of_different_workloads_or_indices_have_different_names(
    left: str, right: str, one: int, two: int
) -> None:
    first, second = spec_of(left, "local", index=one), spec_of(right, "local", index=two)
    same = (left, one) == (right, two)

    assert (first.item_name == second.item_name) is same
    assert (first.trial_id == second.trial_id) is same


@given(names, names, names, names)
def test_a_single_environment_or_mitigation_of_another_name_is_another_cell(
    environment: str, other: str, mitigation: str, further: str
) -> None:
    cell = spec_of("w", environment, (mitigation,)).cell

    assert (spec_of("w", other, (mitigation,)).cell == cell) is (environment == other)
    assert (spec_of("w", environment, (further,)).cell == cell) is (mitigation == further)


@pytest.mark.parametrize("memory", [None, 1, 2**40])
def test_a_fingerprint_can_be_taken_of_whatever_names_and_values_there_are(memory: int | None) -> None:
    spec = TrialSpec(
        workload=WorkloadEntry("caf\udce9", "module:Class", "test"),
        environment=Environment("🔥", launcher=("a\0b",), source_package="test"),
        mitigations=("\n",),
        overlay={"X": "\udcff"},
        environment_index=0,
        mitigation_index=0,
        trial_index=0,
        limits=Limits(memory=memory),
    )
    config = {"loss": float("nan"), "label": "NaN", "deep": [{"\udce9": None}]}

    def taken(config: dict[str, Any]) -> str:
        return fingerprint(fingerprint_parts(spec, Ingredients(config), 1))

    assert re.fullmatch("[0-9a-f]{64}", taken(config))
    assert taken(config) != taken({**config, "loss": "NaN"})
