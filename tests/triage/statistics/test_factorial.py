"""Which variables act, of cells that are all combinations of their values, and whether failures need two of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom
from support.triage_facts import triage_of, trials

from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage.columns import conclusions, json_data
from pytest_aorta.triage.factorial import interaction_p
from pytest_aorta.triage.verdicts import Table

Rate = Callable[[tuple[int, ...]], float]


def table_of(outcomes: dict[str, str], *, sequential: bool = False, environment: str = "local") -> Table:
    facts = [each for names, letters in outcomes.items() for each in trials(names, letters, environment=environment)]
    return triage_of(facts, TriageSettings(sequential=sequential))


def letters(failures: int, number: int) -> str:
    """Failures evenly spread, so that they do not come in runs."""
    return "".join(
        "F" if (turn + 1) * failures // number > turn * failures // number else "." for turn in range(number)
    )


def drawn(levels: tuple[int, ...], rate: Rate, number: int, seed: int) -> Table:
    generator = np.random.default_rng(seed)
    combinations = itertools.product(*map(range, levels))
    return table_of(
        {
            ",".join(f"{name}={level}" for name, level in zip("ABC", each, strict=False)): "".join(
                "F" if lot < rate(each) else "." for lot in generator.random(number)
            )
            for each in combinations
        }
    )


def said(table: Table) -> list[str]:
    return [f"{each.kind} {' '.join(each.levels)}" for found in table.factorials for each in found.findings]


# Sentences.


def test_a_fault_that_needs_two_variables_is_said_to() -> None:
    number = 230
    table = table_of({f"FAST_ATTN={a},FUSED_ADAM={b}": letters(15 * a * b, number) for a in (0, 1) for b in (0, 1)})
    assert conclusions(table) == [
        "It needs both FAST_ATTN=1 and FUSED_ADAM=1: 15 of 230 failed, 0 of 690 otherwise (p < 0.0001)."
    ]
    assert json_data(table.factorials)[0]["method"] == "exact"


def test_one_that_some_fail_with_otherwise_is_far_more_frequent_with_both() -> None:
    counts = {(0, 0): 2, (0, 1): 3, (1, 0): 3, (1, 1): 20}
    table = table_of({f"A={a},B={b}": letters(failed, 40) for (a, b), failed in counts.items()})
    assert conclusions(table)[0].startswith("Far more fail with both A=1 and B=1: 20 of 40 failed, 8 of 120 otherwise")


def test_one_variable_acts_alone_also_where_its_baseline_is_what_fails() -> None:
    worse = table_of({f"A={a},B={b}": letters(16 * a, 40) for a in (0, 1) for b in (0, 1)})
    assert conclusions(worse) == ["A=1 alone makes it frequent: 32 of 80 failed, 0 of 80 with A=0 (p < 0.0001)."]
    cure = table_of({f"A={a},B={b}": letters(16 * (1 - a), 40) for a in (0, 1) for b in (0, 1)})
    assert conclusions(cure) == ["A=1 alone makes it rarer: 0 of 80 failed, 32 of 80 with A=0 (p < 0.0001)."]


def test_where_two_act_and_too_few_fail_to_tell_it_is_open_whether_they_need_each_other() -> None:
    few = table_of({f"A={a},B={b}": letters(5 * a * b, 8) for a in (0, 1) for b in (0, 1)})
    assert conclusions(few) == [
        "A=1 makes it frequent: 5 of 16 failed, 0 of 16 with A=0 (p = 0.032). "
        "B=1 makes it frequent: 5 of 16 failed, 0 of 16 with B=0 (p = 0.032). Whether they need each other is open."
    ]


def test_values_that_act_alike_are_named_together() -> None:
    table = table_of({f"T={t},B={b}": letters(16 * (t > 1), 40) for t in (1, 2, 4) for b in (0, 1)})
    assert conclusions(table) == [
        "T=2 or T=4 alone makes it frequent: 64 of 160 failed, 0 of 80 with T=1 (p < 0.0001)."
    ]


def test_what_acts_in_opposite_directions_depends_on_the_other() -> None:
    table = table_of({f"A={a},B={b}": letters(16 * (a != b), 40) for a in (0, 1) for b in (0, 1)})
    assert conclusions(table)[0].startswith("What A does depends on B (p < 0.0001): 16 of 40 failed with A=")


def test_no_visible_effect_is_said_with_the_numbers() -> None:
    table = table_of({f"A={a},B={b}": letters(12, 40) for a in (0, 1) for b in (0, 1)})
    assert conclusions(table)[0].startswith(
        "No variable has a visible effect: 12 of 40 failed in each cell (A p = 1, B p = 1)."
    )


def test_a_variable_that_is_set_or_not_is_one_and_other_tables_say_nothing() -> None:
    sets = {"none": 0, "A=1": 0, "B=1": 0, "A=1,B=1": 15}
    table = table_of({names: letters(failed, 40) for names, failed in sets.items()})
    assert conclusions(table)[0].startswith("It needs both A=1 and B=1: 15 of 40 failed")
    assert not table_of({names: letters(9, 40) for names in ("none", "A=1", "B=1")}).factorials
    assert not table_of({names: letters(9, 40) for names in ("none", "xnack", "tf32_off", "xnack,tf32_off")}).factorials


def test_lost_trials_of_one_value_leave_it_open() -> None:
    table = table_of({f"A={a},B={b}": "E" * 20 * a + letters(8 * a, 20) for a in (0, 1) for b in (0, 1)})
    assert said(table) == []


def test_numbers_of_trials_that_depend_on_results_have_tests_for_any_time() -> None:
    cells = {f"A={a},B={b}": letters(20 * a * b, 40) for a in (0, 1) for b in (0, 1)}
    table = table_of(cells, sequential=True)
    assert table.factorials[0].method == "sequential"
    assert said(table) == ["needs A=1 B=1"]
    fixed = table_of(cells)
    assert table.factorials[0].findings[0].p > fixed.factorials[0].findings[0].p


# Worlds in which one knows which variable acts.


@pytest.mark.parametrize("levels", [(2, 2), (2, 2, 2), (3, 2)])
@pytest.mark.parametrize(
    ("rate", "right", "number"),
    [
        (lambda at: 0.3, r"none |^$", 40),
        (lambda at: 0.4 * (at[0] == 1) + 0.02, r"acts A=1$", 40),
        (lambda at: 0.5 * (at[0] >= 1 and at[1] == 1), r"needs A=1( or A=2)? B=1$", 40),
        (lambda at: 0.5 * (at[0] == 0 and at[1] == 0), r"needs A=0 B=0$", 40),
    ],
    ids=["none acts", "one acts", "both are needed", "either cures"],
)
def test_sentences_are_right_in_simulated_worlds(levels: tuple[int, ...], rate: Rate, right: str, number: int) -> None:
    found = [drawn(levels, rate, number, seed) for seed in range(30)]
    # Of all tables, 5 % say nothing as failures may come in runs; and 5 % may say something false.
    in_doubt = [table for table in found if not table.factorials]
    judged = [said(table) for table in found if table.factorials]
    assert len(in_doubt) <= 6
    wrong = [each for each in judged if not all(re.match(right, one) for one in each)]
    assert len(wrong) <= 0.1 * len(judged), wrong


# Pure rules.


def test_the_interaction_is_exact_given_how_often_each_value_has_failed() -> None:
    # By counting all tables of five trials that have as many failures of each value.
    counts = ((1, 5), (3, 5), (4, 5), (1, 5))
    every = list(itertools.product(range(6), repeat=4))
    alike = [t for t in every if sum(t) == 9 and t[1] + t[3] == 4 and t[2] + t[3] == 5]
    weight = {t: float(np.prod([binom.pmf(k, 5, 0.5) for k in t])) for t in alike}
    total = sum(weight.values())
    low = sum(each for t, each in weight.items() if t[3] <= 1) / total
    seen = sum(each for t, each in weight.items() if t[3] == 1) / total
    assert interaction_p([counts]) == pytest.approx(min(1.0, 2 * low - seen))
    assert interaction_p([((0, 40), (0, 40), (0, 40), (15, 40))]) == 1.0  # so it is no test of "needs both"
