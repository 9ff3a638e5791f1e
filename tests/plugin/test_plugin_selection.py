"""Which trials run: by name, keyword, marker and earlier failure, and when the run stops early."""

from __future__ import annotations

import re

import pytest
from support.stage import Stage

pytestmark = pytest.mark.usefixtures("echo")


OTHER = ("--aorta-workload", "other", "--aorta-trials", "3")
BOTH = (*OTHER, "--aorta-workload", "echo", "--aorta-mitigations", "none", "--aorta-mitigations", "omp_1,tf32_off")


def collected(result: pytest.RunResult) -> list[str]:
    """Names of the items of a ``--collect-only -q``, which come in rounds: each round in the order of its names."""
    found = [line.removeprefix("aorta::") for line in result.outlines if line.endswith("]")]
    rounds = [round_of(name) for name in found]
    assert rounds == sorted(rounds)
    return sorted(found, key=lambda name: (round_of(name), name))


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
