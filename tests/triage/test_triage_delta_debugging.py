from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.triage.minimize import ddmin

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


def test_one_of_eight_is_found_in_five_steps() -> None:
    left, tried = minimized(8, lambda subset: 5 in subset)
    assert left == (5,)
    assert tried == [(0, 1, 2, 3), (4, 5, 6, 7), (4, 5), (4,), (5,)]


def test_elements_that_act_together_stay_together() -> None:
    assert minimized(8, lambda subset: {1, 6} <= set(subset))[0] == (1, 6)


def test_one_element_is_minimal() -> None:
    assert minimized(1, lambda subset: True) == ((0,), [])
