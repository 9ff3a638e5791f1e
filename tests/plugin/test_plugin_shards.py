"""``--aorta-shard`` and ``--aorta-where``: a part of the trials, the same one on all machines."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from support.projects import ONE, TWO
from support.stage import Stage

pytestmark = pytest.mark.usefixtures("offered")

MATRIX = (
    "--aorta-workload",
    "plain",
    "--aorta-trials",
    "5",
    "--aorta-mitigations",
    "none",
    "--aorta-mitigations",
    "omp_1",
)

RECIPE = (
    """
[[action]]
name = "matrix"
workload = "plain"
trials = 4
config = {size = 3}

[[action]]
name = "shrink"
each = "trial"
command = "touch workspace/{trial_folder}/small"
products = ["small"]
previous_actions = ["matrix"]
"""
    + ONE
    + TWO
)


def collected(stage: Stage, *arguments: str) -> list[str]:
    result = stage.run_here("--collect-only", "-q", *arguments)
    assert result.ret == 0, result.outlines
    return [line.rpartition("::")[2] for line in result.outlines if "::" in line]


def union(parts: Iterable[list[str]]) -> list[str]:
    return [name for part in parts for name in part]


def test_what_follows_a_trial_or_a_directory_is_in_its_shard(stage: Stage) -> None:
    stage.write_file("aorta.toml", RECIPE)
    for number in range(3):
        (stage.path / "workspace" / f"dir{number}").mkdir(parents=True)
    parts = [collected(stage, "aorta.toml", "--aorta-shard", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(union(parts)) == sorted(collected(stage, "aorta.toml"))
    for part in parts:
        units = {
            kind: {re.split(r"[\[\]]", name)[1] for name in part if name.startswith(f"{kind}[")}
            for kind in ("matrix", "shrink", "one", "two")
        }
        assert units["matrix"] == units["shrink"]
        assert units["one"] == units["two"]


def test_a_shard_runs_its_part_and_says_which(stage: Stage) -> None:
    result = stage.run_here(*MATRIX, "--aorta-shard", "2/5")
    result.assert_outcomes(passed=2, deselected=8)
    result.stdout.fnmatch_lines(["aorta: shard 2 of 5"])
    assert len(stage.files()) == 2
    # Resumed: the other shard's trials are run, and what is there stays.
    stage.run_here(*MATRIX, "--aorta-shard", "1/5", "--aorta-resume").assert_outcomes(passed=2, deselected=8)
    assert len(stage.files()) == 4


def test_conditions_select_trials(stage: Stage) -> None:
    names = collected(stage, *MATRIX, "--aorta-where", '/mitigations==["omp_1"]', "--aorta-where", "/trial<2")
    assert names == ["plain[local-omp_1-0]", "plain[local-omp_1-1]"]
    stage.write_file("aorta.toml", RECIPE)
    assert collected(stage, "aorta.toml", "--aorta-where", "/config/size==3", "--aorta-where", "/trial>=3") == [
        "matrix[local-none-3]",
        "shrink[local-none-3]",
    ]


def test_conditions_select_marked_tests_and_no_others(stage: Stage) -> None:
    stage.write_file(
        "test_it.py",
        """
        import pytest

        @pytest.mark.aorta(trials=2, mitigations=["none", "omp_1"])
        def test_trial(aorta_trial): pass

        def test_plain(): pass
        """,
    )
    assert collected(stage, "test_it.py", "--aorta-where", '/mitigations==["omp_1"]') == [
        "test_trial[local-omp_1-0]",
        "test_trial[local-omp_1-1]",
    ]
