"""The smallest part of a mitigation set that still fixes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.triage_facts import trials

from pytest_aorta.triage.facts import Outcome
from pytest_aorta.triage.minimize import Minimized, Search, Wanted, conclusion, ddmin, report

#: Of a trial with these variables, none for the baseline, and this index.
Act = Callable[[tuple[str, ...], int], Outcome]

EIGHT = tuple("ABCDEFGH")
(FACTS,) = trials("none", ".")


def searched(act: Act, *, variables: tuple[str, ...] = EIGHT, most: int = 60, most_in_all: int = 2000) -> Minimized:
    return run(Search(variables, most, most_in_all), act)[0]


def run(search: Search, act: Act) -> tuple[Minimized, list[Wanted]]:
    """The result, and all trials in order."""
    steps = search.steps()
    asked: list[Wanted] = []
    wanted = next(steps)
    while True:
        asked += wanted
        facts = [replace(FACTS, index=one.index, outcome=act(one.variables or (), one.index)) for one in wanted]
        try:
            wanted = steps.send(facts)
        except StopIteration:
            return search.found, asked


def fixed_by(*needed: str) -> Act:
    """Fails always, but with these variables."""
    return lambda variables, index: "ok" if set(needed) <= set(variables) else "failed"


def test_the_one_variable_that_acts_is_left() -> None:
    found, asked = run(Search(EIGHT, 60, 2000), fixed_by("F"))
    assert found.left == ("F",)
    assert found.is_complete
    assert [each.answer for each in found.tried] == ["fixes", "fails", "fixes", "fixes", "fails", "fixes"]
    assert len(asked) == len(set(asked)) < 60
    assert all(each.p <= each.level for each in found.tried if each.answer == "fixes")
    assert conclusion(found, "eight") == (True, "of 8 variables of eight, F is needed")


def test_the_report_says_what_was_tried_and_how_sure_it_is() -> None:
    lines = list(report(searched(fixed_by("C", "D"), variables=tuple("ABCD")), "four"))
    assert lines[0] == "of 4 variables of four, C D are needed, together"
    assert lines[1].split() == ["variables", "trials", "failed", "p", "level"]
    assert lines[2].split()[0] == "(baseline)"
    assert lines[3].split()[0] == "four"
    assert lines[3].split()[-1] == "fixes"
    assert any(line.startswith("with C D: failure rate below ") for line in lines)
    assert "without any one of them it was not seen to fix" in lines


@settings(max_examples=20, deadline=None)
@given(st.sets(st.sampled_from(EIGHT), min_size=1, max_size=3))
def test_variables_that_act_together_are_left_together(needed: set[str]) -> None:
    assert searched(fixed_by(*needed)).left == tuple(sorted(needed))


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (fixed_by("X"), "nothing to minimize: eight does not fix, 1 of 1 trials failed"),
        (lambda variables, index: "ok", "nothing to minimize: no trial of the baseline failed, of 60"),
        (lambda variables, index: "did not run", "nothing to minimize: no trial of eight came to its main work"),
        (
            lambda variables, index: "ok" if variables else "did not run",
            "nothing to minimize: no trial of the baseline came to its main work",
        ),
    ],
)
def test_without_a_failing_baseline_and_a_set_that_fixes_there_is_nothing_to_do(act: Act, sentence: str) -> None:
    found = searched(act)
    assert found.left is None
    assert conclusion(found, "eight") == (False, sentence)


def test_a_rare_failure_that_is_not_shown_to_be_fixed_is_no_success() -> None:
    found = searched(lambda variables, index: "failed" if not variables and index == 7 else "ok", most=20)
    sentence = conclusion(found, "eight")[1]
    assert sentence.startswith("nothing to minimize: not shown that eight fixes; 1 of 20 trials of the baseline failed")


def test_the_number_of_all_trials_is_bounded_and_what_is_known_is_said() -> None:
    found, asked = run(Search(EIGHT, 60, 26), fixed_by("F"))
    assert 26 <= len(asked) <= 27
    success, sentence = conclusion(found, "eight")
    assert not success
    assert sentence == "not at its end (--max-trials): so far, of eight, E F is enough"


def test_infrastructure_neither_helps_nor_hurts() -> None:
    def act(variables: tuple[str, ...], index: int) -> Outcome:
        return "infrastructure" if index % 3 == 1 else fixed_by("B")(variables, index)

    assert searched(act).left == ("B",)


def test_parts_that_never_run_count_as_not_fixing_and_are_named() -> None:
    def act(variables: tuple[str, ...], index: int) -> Outcome:
        return "did not run" if variables and "A" not in variables else fixed_by("C")(variables, index)

    found = searched(act, variables=tuple("ABCD"))
    assert found.left == ("A", "C")
    assert any(line.startswith("taken as not fixing, though did not run: ") for line in report(found, "four"))


def test_trials_side_by_side_find_the_same_with_a_few_more_trials() -> None:
    one, three = (run(Search(EIGHT, 60, 2000, at_once), fixed_by("F")) for at_once in (1, 3))
    assert one[0].left == three[0].left
    assert len(one[1]) <= len(three[1]) < 2 * len(one[1])


Oracle = Callable[[tuple[int, ...]], bool]


def minimized(count: int, acts: Oracle) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """What is left of so many elements, and what was tried."""
    search = ddmin(range(count))
    tried: list[tuple[int, ...]] = []
    answer: bool | None = None
    while True:
        try:
            proposal = next(search) if answer is None else search.send(answer)
        except StopIteration as end:
            return end.value, tried
        tried.append(proposal)
        answer = acts(proposal)


@given(st.integers(1, 12), st.data())
def test_of_a_monotone_effect_no_smaller_part_is_left(count: int, data: st.DataObject) -> None:
    culprits = data.draw(
        st.lists(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4), min_size=1, max_size=3)
    )
    left, _ = minimized(count, lambda subset: any(each <= set(subset) for each in culprits))
    assert any(set(left) == each for each in culprits)
    assert not any(each < set(left) for each in culprits)


@given(st.integers(1, 9), st.randoms(use_true_random=False))
def test_of_any_effect_no_single_element_can_be_left_out(count: int, random: object) -> None:
    subsets = [each for size in range(1, count) for each in combinations(range(count), size)]
    effective = {each for each in subsets if random.random() < 0.4} | {tuple(range(count))}  # type: ignore[attr-defined]
    left, tried = minimized(count, effective.__contains__)
    assert left in effective
    assert not any(tuple(other for other in left if other != each) in effective for each in left)
    assert len(tried) == len(set(tried)) <= count**2 + 3 * count
