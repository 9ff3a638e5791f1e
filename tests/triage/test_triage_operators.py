from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.stats import binom
from support.triage_facts import trials

from pytest_aorta.triage.columns import conclusions
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.speed import LEVEL, OperatorChange, changed_operators
from pytest_aorta.triage.verdicts import Row, triage_of

#: Milliseconds per step.
OPERATORS = {"aten::mm": 12.0, "aten::bmm": 5.0, "aten::copy_": 2.0, "aten::add_": 1.0, "c10d::allreduce_": 6.0} | {
    f"aten::small_{number}": 0.5 for number in range(8)
}


def profiled(
    mitigations: str, number: int, noise: np.random.Generator, step_ms: float = 30.0, **factors: float
) -> list[TrialFacts]:
    """Trials that differ as those of a busy machine do, each as a whole and in each of its operators."""
    found = []
    for trial in trials(mitigations, "." * number, step_ms=tuple(step_ms * noise.lognormal(0, 0.02, number))):
        whole = noise.lognormal(0, 0.05)
        times = {
            name: ms * whole * noise.lognormal(0, 0.05) * factors.get(name.rpartition(":")[2], 1.0)
            for name, ms in OPERATORS.items()
        }
        found.append(replace(trial, operators=times))
    return found


def changes(cell: list[TrialFacts], base: list[TrialFacts], cells: int = 1) -> list[OperatorChange]:
    return list(changed_operators(cell, base, 0.05, cells))


def row_of(cell: list[TrialFacts], base: list[TrialFacts]) -> tuple[Row, list[str]]:
    table = triage_of([*base, *cell])
    return table.row(cell[0].key), list(conclusions(table))


def test_an_operator_that_takes_30_percent_longer_is_named_first_and_in_the_conclusion() -> None:
    noise = np.random.default_rng(1)
    slower = profiled("x", 10, noise, step_ms=34.0, mm=1.3)
    row, sentences = row_of(slower, profiled("none", 10, noise))
    assert row.verdict.kind == "slower"
    first = row.operators[0]
    assert first.name == "aten::mm"
    assert first.interval is not None
    assert first.interval.low <= 1.3 <= first.interval.high
    assert any("What differs most in x: aten::mm +" in sentence for sentence in sentences), sentences


def test_of_200_clean_pairs_no_more_than_the_level_name_any_operator() -> None:
    noise = np.random.default_rng(2)
    wrong = sum(bool(changes(profiled("x", 6, noise), profiled("none", 6, noise))) for _ in range(200))
    assert wrong <= binom.ppf(0.999, 200, LEVEL)


def test_what_may_wait_for_other_ranks_comes_last_and_says_so() -> None:
    noise = np.random.default_rng(3)
    found = changes(profiled("x", 10, noise, mm=1.3, allreduce_=3.0), profiled("none", 10, noise))
    assert [each.name for each in found] == ["aten::mm", "c10d::allreduce_"]
    assert found[1].text.endswith("which may wait for other ranks")


def test_an_operator_that_only_one_side_has_is_named() -> None:
    noise = np.random.default_rng(4)
    cell = [
        replace(trial, operators={**trial.operators, "aten::_foreach_add_": 3.0}) for trial in profiled("x", 8, noise)
    ]
    base = profiled("none", 8, noise)
    assert [each.text for each in changes(cell, base)] == ["aten::_foreach_add_ only here, 3 ms a step"]
    assert [each.text for each in changes(base, cell)] == ["aten::_foreach_add_ only in the baseline, 3 ms a step"]
    assert changes(cell[:2], base[:2]) == []  # two trials of each may differ by chance


def test_without_a_profile_on_both_sides_nothing_is_said() -> None:
    noise = np.random.default_rng(5)
    assert changes(profiled("x", 9, noise, mm=2.0), trials("none", "........")) == []
