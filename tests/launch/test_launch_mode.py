"""Which ways of launching a workload are refused, and with which words; which way is taken otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.plans import SPEC

from pytest_aorta.launch.launch_mode import (
    LaunchModeError,
    LaunchPlan,
    own_rank,
    resolve_launch,
    under_launcher,
    world_size,
)
from pytest_aorta.trials.execution import Execution

SINGLE = ("single_process", 1)


def distributed(minimum: int) -> tuple[str, int]:
    return "distributed", minimum


def rank_of(size: int | str, rank: int = 0) -> dict[str, str]:
    """The environment of one rank among ``size``."""
    return {"WORLD_SIZE": str(size), "RANK": str(rank)}


def resolve(description: tuple[str, int], environ: Mapping[str, str], **fields: Any) -> LaunchPlan:
    return resolve_launch(replace(SPEC, execution=Execution(**fields)), *description, environ)


@pytest.mark.parametrize(
    ("description", "environ", "fields", "launch"),
    [
        (SINGLE, {}, {}, LaunchPlan("single")),
        (SINGLE, {}, {"nproc": 1}, LaunchPlan("single")),
        (SINGLE, {"WORLD_SIZE": "1"}, {}, LaunchPlan("single")),
        (SINGLE, rank_of(1), {}, LaunchPlan("single")),
        (distributed(1), rank_of(1), {}, LaunchPlan("external", 1)),
        (distributed(2), rank_of(8, rank=7), {}, LaunchPlan("external", 8)),
        (distributed(2), rank_of(2), {"isolation": "spawn"}, LaunchPlan("external", 2)),
        (distributed(2), rank_of(2), {"isolation": "none"}, LaunchPlan("external", 2)),
        (distributed(2), rank_of(2), {"launcher": "elastic"}, LaunchPlan("elastic", 2)),
        (distributed(2), rank_of(2), {"launcher": "torchrun"}, LaunchPlan("torchrun", 2)),
        (distributed(2), {}, {}, LaunchPlan("elastic", 2)),
        (distributed(2), {}, {"nproc": 4}, LaunchPlan("elastic", 4)),
        (distributed(2), {}, {"isolation": "spawn"}, LaunchPlan("elastic", 2)),
        (distributed(2), {}, {"launcher": "torchrun", "nproc": 3}, LaunchPlan("torchrun", 3)),
    ],
    ids=str,
)
def test_what_starts_the_ranks(
    description: tuple[str, int], environ: dict[str, str], fields: dict[str, Any], launch: LaunchPlan
) -> None:
    assert resolve(description, environ, **fields) == launch


TOO_FEW = r"^workload w requires WORLD_SIZE >= 8 \(got 2\); launch with torchrun --nproc_per_node=8 -m pytest"


@pytest.mark.parametrize(
    ("description", "environ", "fields", "message"),
    [
        (
            distributed(2),
            {"WORLD_SIZE": "2"},
            {},
            r"^WORLD_SIZE=2 is set, but RANK is not: no launcher has started this process as a rank of w; unset ",
        ),
        (SINGLE, rank_of(2), {}, r"^workload w is single_process; do not wrap with torchrun$"),
        (SINGLE, {}, {"nproc": 2}, r"w is single_process; --aorta-nproc 2 does not apply to it$"),
        (distributed(8), rank_of(2), {}, TOO_FEW + r" --aorta-workload w \.\.\.$"),
        (distributed(4), {}, {"nproc": 2}, r"w requires WORLD_SIZE >= 4 \(got --aorta-nproc 2\)$"),
        (distributed(2), {}, {"isolation": "none"}, r"w is distributed; --aorta-isolation none .* torchrun --nproc_p"),
        (distributed(2), {}, {"launcher": "external"}, r"requires WORLD_SIZE >= 2 \(got 1\); launch with torchrun"),
        (distributed(1), {}, {"launcher": "external"}, r"external: pytest is not a rank, .* launch with torchrun"),
        (distributed(1), {"WORLD_SIZE": "1"}, {"launcher": "external"}, r"RANK and WORLD_SIZE are not set"),
    ],
    ids=str,
)
def test_what_cannot_be_launched_is_refused_with_what_to_type(
    description: tuple[str, int], environ: dict[str, str], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(LaunchModeError, match=message):
        resolve(description, environ, **fields)


@pytest.mark.parametrize("text", ["two", "", "1.5", "0", "-1"])
def test_a_world_size_that_is_no_positive_integer_is_refused(text: str) -> None:
    with pytest.raises(LaunchModeError, match=rf"^WORLD_SIZE='{text}' in the environment is not a positive integer$"):
        resolve(SINGLE, rank_of(text))


@pytest.mark.parametrize(
    ("environ", "size", "rank", "under"),
    [
        ({}, 1, 0, False),
        ({"WORLD_SIZE": " 4 "}, 4, 0, False),
        ({"RANK": "3"}, 1, 3, False),
        ({"RANK": "first"}, 1, 0, False),
        (rank_of(2, 1), 2, 1, True),
    ],
    ids=str,
)
def test_what_the_variables_of_a_launcher_say(environ: dict[str, str], size: int, rank: int, under: bool) -> None:
    assert (world_size(environ), own_rank(environ), under_launcher(environ)) == (size, rank, under)
