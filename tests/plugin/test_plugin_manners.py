"""How the plugin behaves in pytest: what it costs and changes when unused, and what it prints when used."""

from __future__ import annotations

import pytest
from support.stage import Stage

GEMM = ("--aorta-workload", "gemm")


@pytest.mark.usefixtures("as_users_have_it")
def test_plugin_can_be_switched_off(simple: Stage) -> None:
    result = simple.run("-p", "no:aorta", "test_other.py")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*aorta*:*")
    result = simple.run("-p", "no:aorta", *GEMM)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --aorta-workload*"])


@pytest.mark.usefixtures("as_users_have_it")
def test_header_and_table(simple: Stage) -> None:
    options = ("--aorta-workload", "simple", "--aorta-trials", "3", "--aorta-mitigations", "none")
    result = simple.run_here(*options, "--aorta-mitigations", "omp_1", "--aorta-results-dir", "out/here")
    assert sum(line.startswith("aorta: plan ") for line in result.outlines) == 1
    result.stdout.fnmatch_lines(
        [
            "aorta: plan ????????, 6 trials in 2 cells, results in out/here",
            "collected 6 items",
            "aorta ......*",
            "*= trials =*",
            "cell           failed  rate (95%)  verdict*p  step ms",
            "simple",
            "  local-none   0 of 3   0% (<64%)  baseline*     5.75",
            "  local-omp_1  0 of 3   0% (<64%)  undecided  1     5.75",
            "No failure: local-none has not failed in 3 trials;*",
            "results: out/here",
            "*= 6 passed in *",
        ]
    )


@pytest.mark.parametrize(
    ("option", "header", "table"),
    [
        ("-q", False, True),
        ("-qq", False, False),
        ("-v", True, True),
        ("--no-header", False, True),
        ("--no-summary", True, False),
    ],
)
def test_options_that_make_pytest_quieter_or_louder(simple: Stage, option: str, header: bool, table: bool) -> None:
    result = simple.run_here("--aorta-workload", "simple", option)
    assert result.ret == pytest.ExitCode.OK
    assert ("aorta: plan " in result.stdout.str()) == header
    assert ("= trials =" in result.stdout.str()) == table
    assert simple.files() == ["simple/trial_0.json"]


def test_with_a_workload_and_no_path_only_trials_are_collected(simple: Stage) -> None:
    (simple.path / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    simple.run_here("--aorta-workload", "simple").assert_outcomes(passed=1)
    # With a path, what is there comes first.
    result = simple.run_here("--aorta-workload", "simple", "-v", "test_other.py")
    result.stdout.fnmatch_lines(
        ["*collected 2 items", "", "test_other.py::test_other PASSED*", "aorta::simple*PASSED*"]
    )


def test_phases_of_pytest_are_those_of_the_workload(stage: Stage) -> None:
    stage.write(
        phases="""
        import time

        class Phases:
            def __init__(self, config): pass
            def setup(self): time.sleep(0.11)
            def run(self):
                time.sleep(0.22)
                return {"passed": True}
            def cleanup(self): time.sleep(0.33)
        """
    )
    result = stage.run_here("phases.py", "--durations=0", "--durations-min=0.1", "--setup-show", "--aorta-trials", "2")
    lines = [line.split() for line in result.outlines if line.endswith("Phases[local-none-1]") and line[0].isdigit()]
    took = {phase: float(sec.removesuffix("s")) for sec, phase, _ in lines}
    assert sorted(took) == ["call", "setup", "teardown"]
    assert sum(took.values()) >= 0.6  # pytest may be told late that a phase is over
    result.stdout.fnmatch_lines(["*SETUP    F aorta_extra_env*", "*phases.py::Phases*fixtures used: aorta_extra_env*"])
    phases = stage.trial("Phases/trial_1.json")["phases_sec"]
    assert [phase for phase in phases if phase != "import"] == ["launch", "setup", "run", "cleanup"]
    assert phases["setup"] < phases["run"] < phases["cleanup"]
