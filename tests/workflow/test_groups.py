"""Groups of directories: included, sorted, split."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.common.conditions import Json, compared
from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.groups import check_whole, grouped, included
from pytest_aorta.workflow.recipe import Action, ActionTable, Group, Selector

VALUES: Mapping[str, Json] = {
    f"dir{i}": {"i": i, "half": i // 2, "name": "even" if i % 2 == 0 else "odd"} for i in range(8)
}
NAMES = list(VALUES)
REVERSED = NAMES[::-1]


def value_of(name: str) -> Json:
    """The value of a directory of these tests."""
    return VALUES[name]


def groups(**keys: object) -> list[list[str]]:
    """The groups of all eight directories."""
    return grouped(Group.model_validate(keys), NAMES, value_of)


def test_by_default_all_are_one_group_in_the_order_of_their_names() -> None:
    assert grouped(Group(), REVERSED, value_of) == [NAMES]


def test_reverse_sort_turns_the_whole_order_around() -> None:
    assert groups(reverse_sort=True) == [REVERSED]
    # Also that of names with equal keys, as in Row.
    assert groups(sort_by=["/name"], reverse_sort=True) == [
        ["dir7", "dir5", "dir3", "dir1", "dir6", "dir4", "dir2", "dir0"]
    ]


def test_groups_are_at_most_so_large() -> None:
    assert groups(maximum_size=3) == [NAMES[0:3], NAMES[3:6], NAMES[6:8]]


def test_split_where_keys_differ_then_by_size() -> None:
    assert groups(sort_by=["/half"], split_by_sort_key=True) == [NAMES[i : i + 2] for i in range(0, 8, 2)]
    assert groups(sort_by=["/name"], split_by_sort_key=True, maximum_size=3) == [
        ["dir0", "dir2", "dir4"],
        ["dir6"],
        ["dir1", "dir3", "dir5"],
        ["dir7"],
    ]


def test_no_directories_are_no_groups() -> None:
    assert grouped(Group(maximum_size=2), [], value_of) == []


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ([], range(8)),
        ([{"condition": ["/i", "<", 2]}], [0, 1]),
        ([{"condition": ["/i", "<=", 2]}], [0, 1, 2]),
        ([{"condition": ["/i", "==", 2.0]}], [2]),
        ([{"condition": ["/i", ">=", 6]}], [6, 7]),
        ([{"condition": ["/i", ">", 6]}, {"condition": ["/i", "==", 0]}], [0, 7]),
        ([{"all": [["/i", ">", 2], ["/name", "==", "odd"]]}], [3, 5, 7]),
        ([{"any": [["/i", ">", 6], ["/i", "<", 1]]}], [0, 7]),
        ([{"condition": ["", "==", {}]}], None),
    ],
)
def test_selectors_are_alternatives(include: object, expected: list[int] | None) -> None:
    group = Group.model_validate({"include": include})
    if expected is None:
        with pytest.raises(RequestError, match="cannot be compared"):
            included(group, NAMES, value_of)
    else:
        assert included(group, NAMES, value_of) == [f"dir{i}" for i in expected]


def test_a_missing_element_is_an_error_that_names_directory_and_keys() -> None:
    group = Group.model_validate({"include": [{"condition": ["/j", "<", 2]}]})
    with pytest.raises(
        RequestError, match=r"directory 'dir0' has no element '/j' in its value; its keys are half, i, name"
    ):
        included(group, NAMES, value_of)
    with pytest.raises(RequestError, match="no element '/j'"):
        groups(sort_by=["/j"])


def test_a_selector_looks_no_further_once_it_has_decided() -> None:
    assert not Selector.model_validate({"all": [["/i", ">", 5], ["/missing", "==", 1]]}).selects({"i": 1}, "d")
    assert Selector.model_validate({"any": [["/i", "<", 5], ["/missing", "==", 1]]}).selects({"i": 1}, "d")


def test_mixed_types_have_no_order() -> None:
    values: dict[str, Json] = {"a": {"k": 1}, "b": {"k": "one"}}
    with pytest.raises(RequestError, match=r"directories '.' and '.' cannot be sorted"):
        grouped(Group(sort_by=("/k",)), ["a", "b"], values.__getitem__)


def test_a_part_of_a_whole_group_is_refused() -> None:
    whole = Action("act", ActionTable(group=Group(maximum_size=4, submit_whole=True)), 1)
    check_whole(whole, [NAMES[:4]], NAMES, value_of)
    with pytest.raises(
        RequestError, match=r"action 'act' has submit_whole, and the group of 'dir1' with 3 directories"
    ):
        check_whole(whole, [NAMES[1:4]], NAMES, value_of)
    check_whole(Action("act", ActionTable(group=Group(maximum_size=4)), 1), [NAMES[1:4]], NAMES, value_of)


SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3, allow_nan=False) | st.text("ab", max_size=2)
ELEMENTS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2), max_leaves=4)


@given(ELEMENTS, ELEMENTS, ELEMENTS)
def test_the_order_of_elements_is_an_order(one: Json, other: Json, third: Json) -> None:
    order = compared(one, other)
    assert compared(one, one) == 0
    assert compared(other, one) == (None if order is None else -order)
    if order == compared(other, third) and order is not None:
        assert compared(one, third) == order


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 3), min_size=1),
    st.integers(1, 5),
    st.booleans(),
)
def test_each_directory_is_in_one_group_and_groups_follow_the_keys(
    keys: dict[str, int], size: int, reverse: bool
) -> None:
    group = Group(sort_by=("/k",), split_by_sort_key=True, maximum_size=size, reverse_sort=reverse)
    found = grouped(group, list(keys), lambda name: {"k": keys[name]})
    flat = list(itertools.chain(*found))
    assert flat == sorted(sorted(keys), key=keys.__getitem__)[:: -1 if reverse else 1]
    assert all(len({keys[name] for name in part}) == 1 and len(part) <= size for part in found), json.dumps(found)


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 30), st.randoms(use_true_random=False))
def test_each_group_of_trials_has_equally_many_of_each_cell(
    cells: int, trials: int, size: int, generator: random.Random
) -> None:
    units = [f"local-m{cell}/{index}" for cell in range(cells) for index in range(trials)]
    generator.shuffle(units)
    found = grouped(Group(maximum_size=size), units, value_of, of_trials=True)

    assert sorted(itertools.chain(*found)) == sorted(units)
    assert len(found) == math.ceil(len(units) / size)
    assert all(len(part) <= size for part in found)
    if size >= cells:  # else not every group can have one of each
        for cell in range(cells):
            numbers = [sum(unit.startswith(f"local-m{cell}/") for unit in part) for part in found]
            assert 1 <= min(numbers) <= max(numbers) <= min(numbers) + 1
    for part in found:
        indices = [int(unit.rpartition("/")[2]) for unit in part]
        assert indices == sorted(indices)
    assert found == grouped(Group(maximum_size=size), sorted(units), value_of, of_trials=True)


def test_of_more_cells_than_a_group_has_trials_each_meets_all_others() -> None:
    units = [f"local-m{cell}/{index}" for cell in range(4) for index in range(40)]
    met = Counter(
        pair
        for part in grouped(Group(maximum_size=2), units, value_of, of_trials=True)
        for pair in itertools.permutations(sorted({unit.rpartition("/")[0] for unit in part}), 2)
    )
    assert len(met) == 4 * 3
    assert min(met.values()) >= 5


def test_trials_that_the_user_sorts_are_in_that_order() -> None:
    units = [f"local-m{cell}/{index}" for cell in range(2) for index in range(4)]
    values: dict[str, Json] = {unit: {"mitigation": unit[7]} for unit in units}
    group = Group(sort_by=("/mitigation",), split_by_sort_key=True, maximum_size=3)

    found = grouped(group, units, values.__getitem__, of_trials=True)
    assert found == [units[:3], units[3:4], units[4:7], units[7:]]
