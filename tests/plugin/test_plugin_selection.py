"""Which trials run: by name, keyword, marker and earlier failure, and when the run stops early."""

from __future__ import annotations

import re

import pytest
from support.stage import Stage

pytestmark = pytest.mark.usefixtures("gemm_and_fsdp")

#: Two workloads with the names of real ones, of which the second fails in its trials 1 and 3 unless FIXED is set.
SOURCE = """
import os
from pathlib import Path

class Gemm:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        return {"passed": True}

class Fsdp(Gemm):
    def setup(self):
        self.index = len(list(Path.cwd().glob("seen_*")))
        Path(f"seen_{self.index}").touch()
    def run(self):
        return {"passed": self.index not in (1, 3) or "FIXED" in os.environ}
"""


@pytest.fixture
def gemm_and_fsdp(stage: Stage) -> None:
    stage.write(steady=SOURCE)
    stage.register(steady="steady:Gemm", shaky="steady:Fsdp")
    stage.write_registry(mitigations={"fix": {"FIXED": "1"}})


STEADY = ("--aorta-workload", "steady", "--aorta-trials", "3")
BOTH = (*STEADY, "--aorta-workload", "shaky", "--aorta-mitigations", "none", "--aorta-mitigations", "omp_1,tf32_off")


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
    for workload in ("shaky", "steady")
    for mitigations in ("none", "omp_1+tf32_off")
]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), ALL),
        (("-m", "aorta"), ALL),
        (("-m", "not aorta"), []),
        (("-k", "shaky and omp_1"), [name for name in ALL if "shaky" in name and "omp_1" in name]),
        (("-k", "tf32_off-2"), ["shaky[local-omp_1+tf32_off-2]", "steady[local-omp_1+tf32_off-2]"]),
        (("aorta::steady[local-none-1]",), ["steady[local-none-1]"]),
        (("::steady[local-none-1]",), ["steady[local-none-1]"]),
        (("steady[local-none-1]",), ["steady[local-none-1]"]),
        (
            ("steady[local-none-1]", "aorta::shaky[local-omp_1+tf32_off-0]"),
            ["shaky[local-omp_1+tf32_off-0]", "steady[local-none-1]"],
        ),
        (("::steady[local-none-1]", "-k", "shaky"), []),
        (("--deselect", "aorta::steady[local-none-0]", "-k", "steady and not omp_1"), ALL[6:12:4]),
    ],
)
def test_selection(stage: Stage, arguments: tuple[str, ...], names: list[str]) -> None:
    result = stage.run_here("--collect-only", "-q", *BOTH, *arguments)
    assert collected(result) == names
    assert result.ret == (pytest.ExitCode.OK if names else pytest.ExitCode.NO_TESTS_COLLECTED)


@pytest.mark.parametrize(
    "argument", ["aorta::steady[local-none-3]", "::steady[local-none-3]", "steady[local-none-3]", "aorta::nothing"]
)
def test_unknown_trial_is_an_error_that_names_it(stage: Stage, argument: str) -> None:
    result = stage.run_here(*STEADY, argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    name = re.escape(argument.rpartition("::")[2])
    result.stderr.re_match_lines([rf"ERROR: no such trial: {name}; the plan has steady\[local-none-0\], .*"])
    assert not stage.results.exists()
