"""Which trials run: by name, keyword, marker and condition, and on which of several machines."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from support.projects import ONE, TWO
from support.stage import Stage

pytestmark = pytest.mark.usefixtures("echo")


OTHER = ("--aorta-workload", "other", "--aorta-trials", "3")
BOTH = (*OTHER, "--aorta-workload", "echo", "--aorta-mitigations", "none", "--aorta-mitigations", "omp_1,tf32_off")


def collected(result: pytest.RunResult) -> list[str]:
    """Names of the items of a ``--collect-only -q``, which come in rounds: each round in the order of its names."""
    items = [line.removeprefix("aorta::") for line in result.outlines if line.endswith("]")]
    rounds = [round_of(name) for name in items]
    assert rounds == sorted(rounds)
    return sorted(items, key=lambda name: (round_of(name), name))


def round_of(name: str) -> int:
    return int(name.rstrip("]").rpartition("-")[2])


ALL = [
    f"{workload}[local-{mitigations}-{index}]"
    for index in range(3)
    for workload in ("echo", "other")
    for mitigations in ("none", "omp_1+tf32_off")
]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), ALL),
        (("-m", "aorta"), ALL),
        (("-m", "not aorta"), []),
        (("-k", "echo and omp_1"), [name for name in ALL if "echo" in name and "omp_1" in name]),
        (("-k", "tf32_off-2"), ["echo[local-omp_1+tf32_off-2]", "other[local-omp_1+tf32_off-2]"]),
        (("aorta::other[local-none-1]",), ["other[local-none-1]"]),
        (("::other[local-none-1]",), ["other[local-none-1]"]),
        (("other[local-none-1]",), ["other[local-none-1]"]),
        (
            ("other[local-none-1]", "aorta::echo[local-omp_1+tf32_off-0]"),
            ["echo[local-omp_1+tf32_off-0]", "other[local-none-1]"],
        ),
        (("::other[local-none-1]", "-k", "echo"), []),
        (("--deselect", "aorta::other[local-none-0]", "-k", "other and not omp_1"), ALL[6:12:4]),
    ],
)
def test_selection(stage: Stage, arguments: tuple[str, ...], names: list[str]) -> None:
    result = stage.run_here("--collect-only", "-q", *BOTH, *arguments)
    assert collected(result) == names
    assert result.ret == (pytest.ExitCode.OK if names else pytest.ExitCode.NO_TESTS_COLLECTED)


@pytest.mark.parametrize(
    "argument", ["aorta::other[local-none-3]", "::other[local-none-3]", "other[local-none-3]", "aorta::nothing"]
)
def test_unknown_trial_is_an_error_that_names_it(stage: Stage, argument: str) -> None:
    result = stage.run_here(*OTHER, argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    name = re.escape(argument.rpartition("::")[2])
    result.stderr.re_match_lines([rf"ERROR: no such trial: {name}; the plan has other\[local-none-0\], .*"])
    assert not stage.results.exists()


# Shards and conditions

MATRIX = (
    *("--aorta-workload", "echo", "--aorta-trials", "5"),
    *("--aorta-mitigations", "none", "--aorta-mitigations", "omp_1"),
)

RECIPE = (
    """
[[action]]
name = "matrix"
workload = "echo"
trials = 4
config = {size = 3}

[[action]]
name = "shrink"
each = "trial"
command = "touch {folder}/small"
products = ["small"]
previous_actions = ["matrix"]
"""
    + ONE
    + TWO
)


def names_of(stage: Stage, *arguments: str) -> list[str]:
    result = stage.run_here("--collect-only", "-q", *arguments)
    assert result.ret == 0, result.outlines
    return [line.rpartition("::")[2] for line in result.outlines if "::" in line]


def union(parts: Iterable[list[str]]) -> list[str]:
    return [name for part in parts for name in part]


def test_what_follows_a_trial_or_a_directory_is_in_its_shard(stage: Stage) -> None:
    stage.write_file("aorta.toml", RECIPE)
    for number in range(3):
        (stage.path / "workspace" / f"dir{number}").mkdir(parents=True)
    parts = [names_of(stage, "aorta.toml", "--aorta-shard", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(union(parts)) == sorted(names_of(stage, "aorta.toml"))
    for part in parts:
        units = {
            kind: {re.split(r"[\[\]]", name)[1] for name in part if name.startswith(f"{kind}[")}
            for kind in ("matrix", "shrink", "one", "two")
        }
        assert units["matrix"] == units["shrink"]
        assert units["one"] == units["two"]


@pytest.mark.slow
def test_a_shard_runs_its_part_and_says_which(stage: Stage) -> None:
    result = stage.run_here(*MATRIX, "--aorta-shard", "2/5")
    result.assert_outcomes(passed=2, deselected=8)
    result.stdout.fnmatch_lines(["aorta: shard 2 of 5"])
    assert len(stage.files()) == 2
    # Resumed: the other shard's trials are run, and what is there stays.
    stage.run_here(*MATRIX, "--aorta-shard", "1/5", "--aorta-resume").assert_outcomes(passed=2, deselected=8)
    assert len(stage.files()) == 4
    # A job of a CI that has nothing to do is no failure.
    for workers in ((), ("-n", "1")):
        assert stage.run(*MATRIX, "--aorta-shard", "11/11", *workers).ret == pytest.ExitCode.OK


def test_conditions_select_trials(stage: Stage) -> None:
    names = names_of(stage, *MATRIX, "--aorta-where", '/mitigations==["omp_1"]', "--aorta-where", "/trial<2")
    assert names == ["echo[local-omp_1-0]", "echo[local-omp_1-1]"]
    stage.write_file("aorta.toml", RECIPE)
    assert names_of(stage, "aorta.toml", "--aorta-where", "/config/size==3", "--aorta-where", "/trial>=3") == [
        "matrix[local-none-3]",
        "shrink[local-none-3]",
    ]


def test_conditions_select_marked_tests_and_no_others(stage: Stage) -> None:
    stage.write_file(
        "test_it.py",
        """
        import pytest

        @pytest.mark.aorta(trials=2, mitigations=["none", "omp_1"])
        def test_trial(aorta_run): pass

        def test_echo(): pass
        """,
    )
    assert names_of(stage, "test_it.py", "--aorta-where", '/mitigations==["omp_1"]') == [
        "test_trial[local-omp_1-0]",
        "test_trial[local-omp_1-1]",
    ]
