"""Which ways of launching a workload are refused, and with which words; which way is taken otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.specs import SPEC

from pytest_aorta.launch.launch_mode import (
    LaunchModeError,
    LaunchPlan,
    own_rank,
    resolve_launch,
    under_launcher,
    world_size,
)
from pytest_aorta.trials.execution import Execution

SINGLE = {"launch_mode": "single_process", "min_world_size": 1}


def distributed(minimum: int) -> dict[str, Any]:
    return {"launch_mode": "distributed", "min_world_size": minimum}


def rank_of(size: int | str, rank: int = 0) -> dict[str, str]:
    """The environment of one rank among ``size``."""
    return {"WORLD_SIZE": str(size), "RANK": str(rank)}


def resolve(description: Mapping[str, Any], environ: Mapping[str, str], **fields: Any) -> LaunchPlan:
    spec = replace(SPEC, execution=Execution(**fields))
    return resolve_launch(spec, description["launch_mode"], description["min_world_size"], environ)


# The four rules.


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "1"}, rank_of(1)], ids=str)
def test_a_single_process_workload_in_a_single_process_is_launched(environ: dict[str, str]) -> None:
    assert resolve(SINGLE, environ) == LaunchPlan("single")


@pytest.mark.parametrize("size", [2, 8])
def test_a_single_process_workload_under_torchrun_is_refused(size: int) -> None:
    with pytest.raises(LaunchModeError) as caught:
        resolve(SINGLE, rank_of(size))

    assert str(caught.value) == "workload w is single_process; do not wrap with torchrun"


@pytest.mark.parametrize(("minimum", "size"), [(1, 1), (2, 2), (2, 8)])
def test_a_distributed_workload_among_enough_ranks_is_one_of_them(minimum: int, size: int) -> None:
    assert resolve(distributed(minimum), rank_of(size, rank=size - 1)) == LaunchPlan("external", size)


@pytest.mark.parametrize(("minimum", "size"), [(2, 1), (8, 2)])
def test_a_distributed_workload_among_too_few_ranks_is_refused(minimum: int, size: int) -> None:
    with pytest.raises(LaunchModeError) as caught:
        resolve(distributed(minimum), rank_of(size))

    assert str(caught.value) == (
        f"workload w requires WORLD_SIZE >= {minimum} (got {size}); "
        f"launch with torchrun --nproc_per_node={minimum} -m pytest --aorta-workload w ..."
    )


# What the size is.


@pytest.mark.parametrize("text", ["two", "", "1.5", "0", "-1", "2 ranks"])
@pytest.mark.parametrize("description", [SINGLE, distributed(2)], ids=["single", "distributed"])
def test_a_world_size_that_is_no_positive_integer_is_refused(text: str, description: dict[str, Any]) -> None:
    with pytest.raises(LaunchModeError, match=rf"^WORLD_SIZE='{text}' in the environment is not a positive integer$"):
        resolve(description, rank_of(text))


@pytest.mark.parametrize(("environ", "size"), [({}, 1), ({"WORLD_SIZE": "4"}, 4), ({"WORLD_SIZE": " 4 "}, 4)], ids=str)
def test_without_a_world_size_there_is_one_process(environ: dict[str, str], size: int) -> None:
    assert world_size(environ) == size


@pytest.mark.parametrize(
    ("environ", "rank"), [({}, 0), ({"RANK": "3"}, 3), ({"RANK": ""}, 0), ({"RANK": "first"}, 0)], ids=str
)
def test_without_a_rank_this_is_rank_0(environ: dict[str, str], rank: int) -> None:
    assert own_rank(environ) == rank


@pytest.mark.parametrize(
    ("environ", "under"),
    [({}, False), ({"WORLD_SIZE": "2"}, False), ({"RANK": "0"}, False), (rank_of(2), True)],
    ids=str,
)
def test_a_rank_has_a_number_and_a_world(environ: dict[str, str], under: bool) -> None:
    assert under_launcher(environ) is under


# What starts the ranks where no launcher has.


@pytest.mark.parametrize(
    ("fields", "launch"),
    [
        ({}, LaunchPlan("elastic", 2)),
        ({"nproc": 4}, LaunchPlan("elastic", 4)),
        ({"launcher": "elastic"}, LaunchPlan("elastic", 2)),
        ({"launcher": "torchrun", "nproc": 3}, LaunchPlan("torchrun", 3)),
        ({"isolation": "spawn"}, LaunchPlan("elastic", 2)),
    ],
    ids=str,
)
def test_without_a_launcher_the_ranks_are_started_here(fields: dict[str, Any], launch: LaunchPlan) -> None:
    assert resolve(distributed(2), {}, **fields) == launch


@pytest.mark.parametrize("launcher", ["elastic", "torchrun"])
def test_a_launcher_that_was_asked_for_is_taken_also_by_a_rank(launcher: str) -> None:
    assert resolve(distributed(2), rank_of(2), launcher=launcher).mode == launcher


@pytest.mark.parametrize(
    ("description", "environ", "fields", "message"),
    [
        (SINGLE, {}, {"nproc": 2}, r"w is single_process; --aorta-nproc 2 does not apply to it$"),
        (distributed(4), {}, {"nproc": 2}, r"w requires WORLD_SIZE >= 4 \(got --aorta-nproc 2\)$"),
        (
            distributed(2),
            {},
            {"isolation": "none"},
            r"w is distributed; --aorta-isolation none .* torchrun --nproc_per",
        ),
        (distributed(2), {}, {"launcher": "external"}, r"requires WORLD_SIZE >= 2 \(got 1\); launch with torchrun"),
        (distributed(1), {}, {"launcher": "external"}, r"external: pytest is not a rank, .* launch with torchrun"),
        (distributed(1), {"WORLD_SIZE": "1"}, {"launcher": "external"}, r"RANK and WORLD_SIZE are not set"),
    ],
    ids=["nproc of one", "nproc too small", "in this process", "external with 1", "external", "external without rank"],
)
def test_what_cannot_be_launched_is_refused_with_what_to_type(
    description: dict[str, Any], environ: dict[str, str], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(LaunchModeError, match=message):
        resolve(description, environ, **fields)


def test_a_single_process_workload_may_be_given_one_process() -> None:
    assert resolve(SINGLE, {}, nproc=1) == LaunchPlan("single")


@pytest.mark.parametrize("isolation", ["fork", "spawn", "none"])
def test_a_rank_may_have_any_isolation(isolation: str) -> None:
    assert resolve(distributed(2), rank_of(2), isolation=isolation) == LaunchPlan("external", 2)
