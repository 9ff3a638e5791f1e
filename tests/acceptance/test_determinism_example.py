"""The first example of the documentation: a bug that one mitigation makes go away, in one run of pytest."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.stage import Stage

OPTIONS = ("--aorta-trials", "3", "--aorta-mitigations", "none", "--aorta-mitigations", "omp_1")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < 2, reason="on one core there is one thread, and nothing that could differ"
    ),
]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, pytest.RunResult]]:
    """Run it."""
    stage = Stage(tmp_path_factory.mktemp("example") / "stage")
    yield stage, stage.run("--aorta-workload", "determinism", *OPTIONS)
    stage.close()


def test_the_variable_had_an_effect(example: tuple[Stage, pytest.RunResult]) -> None:
    stage, _ = example
    for path, trial in stage.trials().items():
        result = trial["result"]
        if "omp_1" in path:
            assert result["metrics"]["threads"] == 1
            assert (result["failure_count"], result["metrics"]["operations_differing"]) == (0, 0)
        else:
            assert result["metrics"]["threads"] > 1
            assert result["failure_count"] > 0
            assert trial["failure"]["kind"] == "result"
            assert result["failure_details"][0]["kind"] == "differs_from_reference"


def test_the_table_shows_it(example: tuple[Stage, pytest.RunResult]) -> None:
    _, done = example
    done.stdout.fnmatch_lines(["  local-none   3 of 3  100% (44-100%)  baseline*", "  local-omp_1  0 of 3*"])
