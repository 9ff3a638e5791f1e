"""Trials of a cell differ as fresh processes do, and are equal where those are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage

HERE = Path(__file__).parent

TRIALS = 5

#: Of ten draws, how many are different: the reference are fresh interpreters.
Differing = dict[str, bool]


@pytest.fixture(scope="module")
def fresh() -> Differing:
    """Which draws differ between fresh interpreters."""
    command = [sys.executable, str(HERE / "generator_workload.py")]
    return differing([json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(3)])


def differing(draws: list[dict[str, str]]) -> Differing:
    """Which draws are all different; those that are neither all different nor all equal fail the test."""
    counts = {name: len({each[name] for each in draws}) for name in draws[0]}
    mixed = {name: count for name, count in counts.items() if count not in (1, len(draws))}
    assert not mixed
    return {name: count > 1 for name, count in counts.items()}


@pytest.fixture(autouse=True)
def _workloads(stage: Stage) -> None:
    for name in ("generator_workload.py", "seeded_workload.py"):
        shutil.copy(HERE / name, stage.path)


def records(stage: Stage, *arguments: str) -> list[dict[str, Any]]:
    stage.run(*arguments, "--aorta-trials", str(TRIALS)).assert_outcomes(passed=TRIALS)
    return list(stage.trials().values())


def test_the_reference_tells_generators_from_constants(fresh: Differing) -> None:
    assert fresh["torch.rand"]
    assert fresh["numpy.random.rand"]
    assert not fresh["torch.Generator()"]
    assert not fresh["seeded on purpose"]
    assert sum(fresh.values()) >= 20


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="fork"),
        pytest.param(("--aorta-isolation", "spawn"), id="spawn", marks=pytest.mark.slow),
        pytest.param(("--aorta-slots", "2"), id="slots", marks=pytest.mark.slow),
        pytest.param(("-n", "2"), id="xdist", marks=pytest.mark.slow),
    ],
)
def test_trials_differ_as_fresh_processes_do(stage: Stage, fresh: Differing, options: tuple[str, ...]) -> None:
    found = records(stage, "generator_workload.py::Draws", *options)
    assert differing([record["result"]["metrics"] for record in found]) == fresh
    assert len({record["seeds"]["seed"] for record in found}) == TRIALS
    assert all(record["seeds"]["kept"] == [] for record in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [("auto",), ("auto", "--aorta-elastic", "start_method=spawn"), ("torchrun",)], ids=" ".join
)
def test_ranks_differ_as_fresh_processes_do(stage: Stage, fresh: Differing, launcher: tuple[str, ...]) -> None:
    arguments = ["--aorta-launcher", *launcher, "--aorta-trials", "2", "--aorta-timeout", "100"]
    stage.run("generator_workload.py::RankDraws", *arguments).assert_outcomes(passed=2)
    ranks = [rank for record in stage.trials().values() for rank in record["ranks"]]
    assert len(ranks) == 4
    assert differing([rank["result"]["metrics"] for rank in ranks]) == fresh
    assert len({rank["seeds"]["seed"] for rank in ranks}) == 4


@pytest.mark.parametrize("isolation", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_what_a_workload_seeds_at_import_stays(stage: Stage, isolation: str) -> None:
    found = records(stage, "seeded_workload.py", "--aorta-isolation", isolation)
    for name in ("random.random", "numpy.random.rand", "torch.rand"):
        assert len({record["result"]["metrics"][name] for record in found}) == 1
    assert all(record["seeds"]["kept"] == ["numpy.random", "random", "torch"] for record in found)
    assert all(record["seeds"]["generators"] == {} for record in found)
