"""Directories and trials: selected by conditions, in groups and waves, and as the commands that run on them."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.common.conditions import Json, compared, parse_condition, selected
from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.groups import FIRST_WAVE, action_variables, grouped, included, next_wave, whole_groups
from pytest_aorta.workflow.recipe import (
    Action,
    ActionTable,
    Cost,
    Group,
    JobResources,
    Selector,
    check_command,
    shell_commands,
)

VALUES: Mapping[str, Json] = {
    f"dir{i}": {"i": i, "half": i // 2, "name": "even" if i % 2 == 0 else "odd"} for i in range(8)
}
NAMES = list(VALUES)


def value_of(name: str) -> Json:
    return VALUES[name]


def groups_of(*given: Any, of_trials: bool = False) -> list[list[str]]:
    return list(grouped(*given, of_trials=of_trials))


def named(*groups: str) -> list[list[str]]:
    return [[f"dir{number}" for number in group] for group in groups]


def test_groups_are_sorted_split_where_keys_differ_and_then_by_size() -> None:
    cases: list[tuple[dict[str, Any], list[list[str]]]] = [
        ({}, named("01234567")),
        ({"reverse_sort": True}, named("76543210")),
        # Also that of names with equal keys, as in Row.
        ({"sort_by": ["/name"], "reverse_sort": True}, named("75316420")),
        ({"maximum_size": 3}, named("012", "345", "67")),
        ({"sort_by": ["/half"], "split_by_sort_key": True}, named("01", "23", "45", "67")),
        ({"sort_by": ["/name"], "split_by_sort_key": True, "maximum_size": 3}, named("024", "6", "135", "7")),
    ]
    for keys, expected in cases:
        group = Group.model_validate(keys)
        assert groups_of(group, NAMES[::-1], value_of) == expected
        assert groups_of(group, [], value_of) == []


def test_selectors_are_alternatives() -> None:
    cases: list[tuple[object, list[int] | None]] = [
        ([], [*range(8)]),
        ([{"condition": ["/i", "<", 2]}], [0, 1]),
        ([{"condition": ["/i", "<=", 2]}], [0, 1, 2]),
        ([{"condition": ["/i", "==", 2.0]}], [2]),
        ([{"condition": ["/i", ">=", 6]}], [6, 7]),
        ([{"condition": ["/i", ">", 6]}, {"condition": ["/i", "==", 0]}], [0, 7]),
        ([{"all": [["/i", ">", 2], ["/name", "==", "odd"]]}], [3, 5, 7]),
        ([{"any": [["/i", ">", 6], ["/i", "<", 1]]}], [0, 7]),
        ([{"condition": ["", "==", {}]}], None),
    ]
    for include, expected in cases:
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
        groups_of(Group(sort_by=("/j",)), NAMES, value_of)


def test_a_selector_looks_no_further_once_it_has_decided() -> None:
    assert not Selector.model_validate({"all": [["/i", ">", 5], ["/missing", "==", 1]]}).selects({"i": 1}, "d")
    assert Selector.model_validate({"any": [["/i", "<", 5], ["/missing", "==", 1]]}).selects({"i": 1}, "d")


def test_mixed_types_have_no_order() -> None:
    values: dict[str, Json] = {"a": {"k": 1}, "b": {"k": "one"}}
    with pytest.raises(RequestError, match=r"directories '.' and '.' cannot be sorted"):
        groups_of(Group(sort_by=("/k",)), ["a", "b"], values.__getitem__)


def test_no_more_directories_are_looked_at_than_groups_are_taken() -> None:
    looked_at = []

    def is_left(name: str) -> bool:
        looked_at.append(name)
        return name not in ("dir0", "dir2")

    groups = grouped(Group(maximum_size=2), NAMES, value_of, is_left)
    assert next(groups) == ["dir1", "dir3"]
    assert looked_at == NAMES[:4]


def test_whole_groups_are_those_of_all_included_units() -> None:
    whole = Action("act", ActionTable(group=Group(maximum_size=4, submit_whole=True)), 1)
    assert whole_groups(whole, NAMES, value_of)[0] == NAMES[:4]


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
    found = groups_of(group, list(keys), lambda name: {"k": keys[name]})
    flat = list(itertools.chain(*found))
    assert flat == sorted(sorted(keys), key=keys.__getitem__)[:: -1 if reverse else 1]
    assert all(len({keys[name] for name in part}) == 1 and len(part) <= size for part in found), json.dumps(found)


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 30), st.randoms(use_true_random=False))
def test_each_group_of_trials_has_equally_many_of_each_cell(
    cells: int, trials: int, size: int, generator: random.Random
) -> None:
    units = [f"local-m{cell}/{index}" for cell in range(cells) for index in range(trials)]
    generator.shuffle(units)
    found = groups_of(Group(maximum_size=size), units, value_of, of_trials=True)

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
    assert found == groups_of(Group(maximum_size=size), sorted(units), value_of, of_trials=True)


def test_of_more_cells_than_a_group_has_trials_each_meets_all_others() -> None:
    units = [f"local-m{cell}/{index}" for cell in range(4) for index in range(40)]
    met = Counter(
        pair
        for part in groups_of(Group(maximum_size=2), units, value_of, of_trials=True)
        for pair in itertools.permutations(sorted({unit.rpartition("/")[0] for unit in part}), 2)
    )
    assert len(met) == 4 * 3
    assert min(met.values()) >= 5


def test_trials_that_the_user_sorts_are_in_that_order() -> None:
    units = [f"local-m{cell}/{index}" for cell in range(2) for index in range(4)]
    values: dict[str, Json] = {unit: {"mitigation": unit[7]} for unit in units}
    group = Group(sort_by=("/mitigation",), split_by_sort_key=True, maximum_size=3)

    found = groups_of(group, units, values.__getitem__, of_trials=True)
    assert found == [units[:3], units[3:4], units[4:7], units[7:]]


@given(st.integers(1, 9), st.integers(1, 200), st.one_of(st.none(), st.integers(1, 100)))
def test_waves_are_whole_rounds_first_and_double_what_is_over(cells: int, trials: int, size: int | None) -> None:
    left = [f"local-m{cell}/{index}" for cell in range(cells) for index in range(trials)]
    over: list[str] = []
    assert next_wave([], size, 0) == []
    while left:
        wave = next_wave(left, size, len(over))
        assert wave
        assert len(wave) <= max(len(over), size or len(left), FIRST_WAVE * cells)
        rest = set(left) - set(wave)
        assert len(wave) >= len(over) or not rest
        assert max(int(unit.rpartition("/")[2]) for unit in wave) <= min(
            (int(unit.rpartition("/")[2]) for unit in rest), default=trials
        )
        if not over:
            assert min(Counter(unit.rpartition("/")[0] for unit in wave).values()) >= min(FIRST_WAVE, trials)
            assert len(wave) >= (size or 1) or not rest
        assert size is not None or not rest
        over, left = [*over, *wave], [unit for unit in left if unit in rest]


WORKSPACE = Path("/w s")


@pytest.mark.parametrize(
    ("command", "names", "lines"),
    [
        ("run {directory} --in {workspace_path} --lr {/lr} {/a/b}", ["x"], ["run x --in '/w s' --lr 0.1 't u'"]),
        ("run {directories}", ["a", "b c"], ["run a 'b c'"]),
        ("for x in {1..3}; do echo ${x} {directory}; done", ["d"], ["for x in {1..3}; do echo ${x} d; done"]),
    ],
)
def test_commands_name_each_directory_or_all_and_braces_of_the_shell_stay(
    command: str, names: list[str], lines: list[str]
) -> None:
    check_command(command)
    values: list[Json] = [{"lr": 0.1, "a": {"b": "t u"}}] * len(names)
    assert shell_commands(command, names, values, WORKSPACE) == lines


def test_folders_are_paths_from_where_a_command_runs() -> None:
    cases: list[tuple[str, str, str]] = [
        ("directory", "d 1", "run 'w s/d 1'"),
        ("trial", "m/w/local-none/trial_3", "run 'w s/m/w/local-none/trial_3' 'w s/m/w/local-none' 'w s/m'"),
        ("trial", "m/w/trial_3", "run 'w s/m/w/trial_3' 'w s/m/w' 'w s/m'"),
        ("cell", "m/w/local-none", "run 'w s/m/w/local-none' 'w s/m/w/local-none' 'w s/m'"),
        ("matrix", "m", "run 'w s/m' 'w s/m'"),
    ]
    for each, paths, line in cases:
        command = "run {folder}" + {"directory": "", "matrix": " {results}"}.get(each, " {cell} {results}")
        check_command(command, each)
        assert shell_commands(command, [paths], [None], Path("w s")) == [line]


def test_folders_that_a_command_has_not_are_refused() -> None:
    cases: list[tuple[str, str, str]] = [
        (
            "run {cell}",
            "directory",
            "has {cell}, which is for each = 'trial' or 'cell'; for each = 'directory', {direct",
        ),
        ("run {results}", "directory", "has {results}, which is for each = 'trial' or 'cell' or 'matrix'"),
        ("run {results}", "cell", "has neither of {folder} and {folders}"),
        ("run {folder} {folders}", "trial", "has both of"),
    ]
    for command, each, why in cases:
        with pytest.raises(ValueError, match=re.escape(why)):
            check_command(command, each)


def test_an_element_that_is_missing_names_its_directory() -> None:
    with pytest.raises(RequestError, match="directory 'd' has no element '/k'"):
        shell_commands("run {directory} {/k}", ["d"], [{}], WORKSPACE)


def test_variables_say_what_a_job_is() -> None:
    resources = JobResources.model_validate(
        {
            "processes": {"per_directory": 2},
            "threads_per_process": 4,
            "gpus_per_process": 1,
            "walltime": {"per_directory": "00:01:30"},
        }
    )
    assert action_variables("act", resources, 3, WORKSPACE, "none") == {
        "ACTION_CLUSTER": "none",
        "ACTION_NAME": "act",
        "ACTION_WORKSPACE_PATH": "/w s",
        "ACTION_PROCESSES": "6",
        "ACTION_PROCESSES_PER_DIRECTORY": "2",
        "ACTION_WALLTIME_IN_MINUTES": "5",
        "ACTION_THREADS_PER_PROCESS": "4",
        "ACTION_GPUS_PER_PROCESS": "1",
    }
    plain = action_variables("act", JobResources(), 3, WORKSPACE, "none")
    assert plain["ACTION_PROCESSES"] == "1"
    assert plain["ACTION_WALLTIME_IN_MINUTES"] == "180"
    assert not plain.keys() & {
        "ACTION_PROCESSES_PER_DIRECTORY",
        "ACTION_THREADS_PER_PROCESS",
        "ACTION_GPUS_PER_PROCESS",
    }


def test_costs_count_gpus_instead_of_cores() -> None:
    walltime = {"per_submission": "02:00:00"}
    assert JobResources.model_validate({"walltime": walltime, "threads_per_process": 8}).cost(5) == Cost(cpu_hours=16)
    gpus = JobResources.model_validate({"walltime": walltime, "gpus_per_process": 2, "processes": {"per_directory": 3}})
    assert gpus.cost(5) == Cost(gpu_hours=60)
    assert str(gpus.cost(5) + Cost(cpu_hours=1234.4)) == "1,234 CPU-hours and 60 GPU-hours"
    assert str(Cost()) == "0 CPU-hours"


TRIALS = [
    {"environment": environment, "mitigations": ["none"], "config": {"lr": lr, "a/b": {"c~d": 1}}, "trial": trial}
    for environment, lr in (("local", 0.05), ("rocm7", 0.2))
    for trial in range(2)
]


def chosen(*texts: str, trials: list[Any] = TRIALS) -> list[int]:
    return selected(range(len(trials)), trials.__getitem__, [parse_condition(text) for text in texts], "--where")


def test_operators() -> None:
    cases: list[tuple[list[str], list[int]]] = [
        (["/config/lr<0.1"], [0, 1]),
        (["/config/lr >= 2e-1"], [2, 3]),
        (["/environment==local"], [0, 1]),
        (['/environment=="local"'], [0, 1]),
        (["/environment>local"], [2, 3]),
        (['/mitigations==["none"]'], [0, 1, 2, 3]),
        (["/trial<=0", "/config/lr>0.1"], [2]),
        (["/config/a~1b/c~0d==1", "/trial==1"], [1, 3]),
        (["/trial>7"], []),
        (["/trial>7", "/config/lr<1"], []),
    ]
    for texts, numbers in cases:
        assert chosen(*texts) == numbers


def test_what_is_no_condition_is_refused() -> None:
    for text in ["", "lr<1", "/config/lr", "/config/lr=1", "/config/lr!=1", "/config/lr<", "/a~2<1", "<1"]:
        with pytest.raises(
            ValueError, match=r"such as /config/lr<0.1 or /environment==local, with one of <, <=, ==, >=, >"
        ):
            parse_condition(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "/config/rl<0.1",
            "no trial or directory has /config/rl; there are /environment, /mitigations, "
            "/config, /config/lr, /config/a~1b, /config/a~1b/c~0d, /trial",
        ),
        ("/config/lr<fast", '/config/lr is 0.05 there, which cannot be compared with "fast"'),
    ],
)
def test_what_no_trial_can_meet_is_one_message(text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        chosen(text)
    assert str(caught.value) == f"--where '{text}': {message}"


def test_trials_without_the_element_are_not_selected_where_others_have_it() -> None:
    trials = [{"config": {}}, {"config": {"lr": 0.01}}, {"config": {"lr": "auto"}}, None]
    assert chosen("/config/lr<0.1", trials=trials) == [1]
