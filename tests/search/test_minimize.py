"""The smallest part of a mitigation set that still acts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.triage_facts import trials

from pytest_aorta.search import Wanted
from pytest_aorta.search.minimize import Minimize, Minimized, Needed, conclusion, report
from pytest_aorta.triage.facts import Outcome

#: Of a trial with these variables, none for the baseline, and this index.
Act = Callable[[tuple[str, ...], int], Outcome]

EIGHT = tuple("ABCDEFGH")
(FACTS,) = trials("none", ".")


def searched(act: Act, *, variables: tuple[str, ...] = EIGHT, most: int = 60, most_in_all: int = 2000) -> Minimized:
    return run(Minimize(variables, most, most_in_all), act)[0]


def run(search: Minimize, act: Act) -> tuple[Minimized, list[Wanted]]:
    """The result, and all trials in order."""
    steps = search.steps()
    asked: list[Wanted] = []
    wanted = next(steps)
    while True:
        asked += wanted
        facts = [replace(FACTS, index=one.index, outcome=act(one.arm or (), one.index)) for one in wanted]
        try:
            wanted = steps.send(facts)
        except StopIteration:
            return search.found, asked


def fixed_by(*needed: str) -> Act:
    """Fails always, but with these variables."""
    return lambda variables, index: "ok" if set(needed) <= set(variables) else "failed"


def by_chance(rate: float, residual: float, *needed: str, seed: int = 1) -> Act:
    """Fails with this rate, and with ``residual`` where the variables are there."""
    rng = random.Random(seed)
    return lambda variables, index: (
        "failed" if rng.random() < (residual if set(needed) <= set(variables) else rate) else "ok"
    )


def test_the_one_variable_that_acts_is_left() -> None:
    found, asked = run(Minimize(EIGHT, 60, 2000), fixed_by("F"))
    assert found.left == ("F",)
    assert found.is_complete
    assert len(asked) == len(set(asked)) < 100
    assert all(each.p <= each.level for each in found.tried if each.answer == "acts")
    assert conclusion(found, "eight") == (True, "of 8 variables of eight, F is needed")
    # In the end it runs alone, until it is seen to fail rarely. Each part has fresh trials of the baseline, by turns.
    while asked[-2].arm == ("F",):
        asked.pop()
    assert [one.arm is None for one in asked] == [number % 2 == 0 for number in range(len(asked))]
    assert [one.index for one in asked if one.arm is None] == list(range(len(asked) // 2))


def test_the_report_says_what_was_tried_and_how_sure_it_is() -> None:
    found = searched(fixed_by("C", "D"), variables=tuple("ABCD"))
    found.last.trials = 41  # so that the bound, 8.814 %, is to be rounded up
    lines = report(found, "four").lines()
    assert lines[0] == "of 4 variables of four, C D are needed, together"
    assert lines[1].split() == ["variables", "failed", "baseline", "p", "level"]
    assert lines[2].split()[0] == "four"
    assert lines[2].split()[-1] == "acts"
    assert any(line.startswith("with C D: failure rate below 8.9% (95 %), ") for line in lines)
    assert "at most 5%: the probability that any answer on a part is wrong" in lines


@settings(max_examples=20, deadline=None)
@given(st.sets(st.sampled_from(EIGHT), min_size=1, max_size=3))
def test_variables_that_act_together_are_left_together(needed: set[str]) -> None:
    assert searched(fixed_by(*needed)).left == tuple(sorted(needed))


def test_where_either_suffices_one_is_left() -> None:
    found = searched(lambda variables, index: "ok" if {"C", "F"} & set(variables) else "failed")
    assert found.is_complete
    assert found.left in (("C",), ("F",))


def test_what_only_reduces_is_found_too() -> None:
    for seed in range(4):
        found = searched(by_chance(0.8, 0.1, "B", "G", seed=seed), most=200)
        assert found.left == ("B", "G")
        assert any(each.failures for each in found.tried if each.answer == "acts")


def test_a_fault_that_goes_away_ends_the_search_with_these_words() -> None:
    gone = iter(range(1000))
    found = searched(lambda variables, index: "ok" if variables or next(gone) >= 14 else "failed")
    success, sentence = conclusion(found, "eight")
    assert not success
    assert sentence.startswith("the fault went away: the baseline fails no more. So far, of eight, ")


def test_without_a_failing_baseline_and_a_set_that_acts_there_is_nothing_to_do() -> None:
    cases: list[tuple[Act, str]] = [
        (
            fixed_by("X"),
            "nothing to minimize: eight does not fix it, nor makes it much rarer: 9 of 9 trials failed, 9 of 9 without",
        ),
        (lambda variables, index: "ok", "nothing to minimize: no trial of the baseline failed, of 60"),
        (lambda variables, index: "did not run", "nothing to minimize: no trial of eight came to its main work"),
        (
            lambda variables, index: "ok" if variables else "did not run",
            "nothing to minimize: no trial of the baseline came to its main work",
        ),
    ]
    for act, sentence in cases:
        found = searched(act)
        assert found.left is None
        assert conclusion(found, "eight")[1].startswith(sentence)
        assert report(found, "eight").notes == ()


def test_a_set_that_does_nothing_is_not_tried_to_the_end() -> None:
    found = searched(by_chance(0.5, 0.5, "F"), most=1000)
    assert found.tried[0].answer == "fails"
    assert found.tried[0].trials < 500


def test_the_number_of_all_trials_is_bounded_and_what_is_known_is_said() -> None:
    found, asked = run(Minimize(EIGHT, 60, 40), fixed_by("F"))
    assert 40 <= len(asked) <= 41
    success, sentence = conclusion(found, "eight")
    assert not success
    assert sentence.startswith("not at its end (--max-trials): so far, of eight, ")


def test_infrastructure_neither_helps_nor_hurts() -> None:
    def act(variables: tuple[str, ...], index: int) -> Outcome:
        return "infrastructure" if index % 3 == 1 else fixed_by("B")(variables, index)

    assert searched(act).left == ("B",)


def test_parts_that_never_run_stay_in_and_are_named() -> None:
    def act(variables: tuple[str, ...], index: int) -> Outcome:
        return "did not run" if variables and "A" not in variables else fixed_by("C")(variables, index)

    found = searched(act, variables=tuple("ABCD"))
    assert found.left == ("A", "C")
    assert any(line.startswith("taken as not acting, though did not run: ") for line in report(found, "four").lines())


def test_what_is_not_decided_is_no_success() -> None:
    def act(variables: tuple[str, ...], index: int) -> Outcome:
        half = variables and not {"C", "D"} <= set(variables)
        return "failed" if not variables or (half and index % 2) else "ok"

    found = searched(act, variables=tuple("CD"), most=12)
    success, sentence = conclusion(found, "two")
    assert (success, found.unsure != ()) == (False, True)
    assert sentence.startswith("of two, C D is enough; not decided whether ")


def test_trials_side_by_side_find_the_same_with_a_few_more_trials() -> None:
    one, three = (run(Minimize(EIGHT, 60, 2000, at_once), fixed_by("F")) for at_once in (1, 6))
    assert one[0].left == three[0].left
    assert len(one[1]) <= len(three[1]) < 2 * len(one[1])


Oracle = Callable[[frozenset[str]], bool]


def minimized(names: str, acts: Oracle) -> tuple[frozenset[str], list[frozenset[str]]]:
    """What is left of the variables where answers are certain, and what was tried."""
    needed, tried = Needed(names), []
    while left_out := needed.next():
        part = frozenset(needed.left).difference(left_out)
        if part not in tried:
            tried.append(part)
        needed.learn(left_out, acts(part))
    return frozenset(needed.left), tried


@given(st.integers(1, 12), st.data())
def test_of_a_monotone_effect_no_smaller_part_is_left(count: int, data: st.DataObject) -> None:
    names = "ABCDEFGHIJKL"[:count]
    culprits = data.draw(
        st.lists(st.frozensets(st.sampled_from(names), min_size=1, max_size=4), min_size=1, max_size=3)
    )
    left, tried = minimized(names, lambda part: any(each <= part for each in culprits))
    assert left in culprits
    assert not any(each < left for each in culprits)
    assert frozenset() not in tried
    assert len(tried) <= count**2


def test_one_of_many_takes_few_parts() -> None:
    numbers = [len(minimized("ABCDEFGHIJKLMNOP", frozenset({name}).__le__)[1]) for name in "ABCDEFGHIJKLMNOP"]
    assert max(numbers) <= 14


def test_of_two_that_add_up_the_second_is_found_beside_the_first() -> None:
    """Either of two variables lowers the rate, both together lower it more: one of them never is "what is needed"."""
    named = []
    for seed in range(5):
        rng = random.Random(seed)

        def act(variables: tuple[str, ...], index: int, rng: random.Random = rng) -> Outcome:
            rate = 0.9 * (0.3 if "B" in variables else 1) * (0.2 if "G" in variables else 1)
            return "failed" if rng.random() < rate else "ok"

        found = searched(act, most=200)
        is_all, sentence = conclusion(found, "eight")
        assert not is_all or {"B", "G"} <= set(found.left or ())
        if found.beside is not None:
            assert any(line.startswith("beside the whole set: ") for line in report(found, "eight").lines())
            still = f"; {found.beside.failures} of {found.beside.trials} trials still fail with "
            assert not found.beside.failures or still in sentence
        if found.kept:
            assert set(found.kept) < set(found.left or ())
            assert not is_all or " alone removes less" in sentence
        named += [found.left] * is_all
    assert named.count(("B", "G")) >= 3


def test_of_a_pair_that_adds_to_another_variable_it_is_said_that_none_alone_does() -> None:
    rng = random.Random(4)

    def act(variables: tuple[str, ...], index: int) -> Outcome:
        rate = 0.9 * (0.4 if "A" in variables else 1) * (0.0 if {"C", "D"} <= set(variables) else 1)
        return "failed" if rng.random() < rate else "ok"

    found = searched(act, variables=tuple("ABCD"), most=200)
    assert found.left is not None
    is_all, sentence = conclusion(found, "four")
    assert is_all == ({"C", "D"} <= set(found.left)), sentence
    if found.left == ("A",):
        assert "A acts, but less than all of them, and no" in sentence


def test_what_still_fails_with_what_is_needed_is_said() -> None:
    found = searched(by_chance(0.9, 0.1, "F", seed=2), most=200)
    success, sentence = conclusion(found, "eight")
    assert found.beside is not None
    if success:
        still = f"{found.beside.failures} of {found.beside.trials} trials still fail with it"
        assert sentence == f"of 8 variables of eight, F is needed; {still}"
