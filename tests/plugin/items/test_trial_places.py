"""Where trials stand in pytest's tree: in a module with a file and a line, for fixtures, IDEs and other plugins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import ide_reporter
from support.stage import Stage

#: Two workloads, of which one stands in another class; comments mark their lines.
WORKLOADS = """
    import os

    class Steady:  # Steady
        def __init__(self, config): pass
        def setup(self): pass
        def run(self): return {"passed": "BROKEN" not in os.environ}

    class Other(Steady):  # Other
        pass
    """

TESTS = """
    import pytest

    def test_alone(): pass

    class TestMore:
        @pytest.mark.parametrize("number", [1, 2])
        def test_number(self, number): pass
    """


def line_of(name: str, text: str = WORKLOADS) -> int:
    """The line of a class in a file that was written from an indented text, from 1."""
    (line,) = [number for number, line in enumerate(text.strip().splitlines(), 1) if line.endswith(f"# {name}")]
    return line


@pytest.fixture
def mine(stage: Stage) -> Stage:
    """A project with tests and a package of its own workloads, which are in the ini file."""
    stage.write_file("pytest.ini", "[pytest]\naorta_workload =\n    steady\n    other\naorta_trials = 2")
    stage.write_file("mine/__init__.py", "")
    stage.write_file("mine/workloads.py", WORKLOADS)
    stage.write_file("tests/test_it.py", TESTS)
    stage.register(steady="mine.workloads:Steady", other="mine.workloads:Other")
    return stage


def ide(stage: Stage, *arguments: str) -> dict[str, Any]:
    """Run pytest as an IDE does; its report."""
    file = stage.path / "report.json"
    stage.copy(Path(ide_reporter.__file__))
    stage.run("-p", "ide_reporter", *arguments, env={ide_reporter.FILE: str(file)})
    report: dict[str, Any] = json.loads(file.read_text())
    return report


@pytest.mark.parametrize("arguments", [(), ("tests", "aorta::steady")], ids=" ".join)
def test_an_ide_finds_trials_beside_tests_and_runs_them_by_its_own_ids(mine: Stage, arguments: tuple[str, ...]) -> None:
    nodes = ide(mine, "--collect-only", *arguments)
    file = f"{mine.path}/mine/workloads.py"
    names = ["steady"] if "aorta::steady" in arguments else ["steady", "other"]
    trials = {f"{file}::{name}[local-none-{index}]": line_of(name.capitalize()) for name in names for index in (0, 1)}
    assert {key: value["line"] for key, value in nodes.items() if "local-none" in key} == trials
    assert all(nodes[key]["in"] == [f"{mine.path}/mine", file] for key in trials)
    tests = f"{mine.path}/tests/test_it.py"
    assert [key for key in nodes if key not in trials] == [
        f"{tests}::test_alone",
        *(f"{tests}::TestMore::test_number[{number}]" for number in (1, 2)),
    ]

    chosen = [f"{file}::steady[local-none-1]", f"{tests}::test_alone"]
    assert ide(mine, *chosen) == dict.fromkeys(chosen, "passed")


@pytest.mark.parametrize(
    ("argument", "trials"),
    [(".", 4), ("mine", 4), ("tests", 0), ("tests/test_it.py::test_alone", 0), ("aorta::other[local-none-1]", 1)],
)
def test_workloads_of_the_ini_file_run_where_their_folder_is_given(mine: Stage, argument: str, trials: int) -> None:
    result = mine.run(argument, "-v")
    result.assert_outcomes(passed=trials + {".": 3, "tests": 3, "tests/test_it.py::test_alone": 1}.get(argument, 0))
    assert len(mine.files()) == trials


def test_reports_lead_to_the_class_wherever_it_is_installed(mine: Stage) -> None:
    mine.write_file("pytest.ini", "[pytest]")
    options = ("--aorta-workload", "other", "--aorta-workload", "gemm", "--collect-only", "-q")
    mine.write_file("conftest.py", "def pytest_collection_finish(session): print([i.location for i in session.items])")
    (line,) = [line for line in mine.run_here(*options).outlines if line.startswith("[(")]
    other, gemm = eval(line)
    assert other == ("mine/workloads.py", line_of("Other") - 1, "other[local-none-0]")
    gemm_file = mine.path / gemm[0]
    assert gemm_file.read_text().splitlines()[gemm[1]].startswith("class Gemm")


def test_a_failure_names_the_line_of_the_class(mine: Stage) -> None:
    result = mine.run_here("steady[local-bad-0]", "--tb=line", "--aorta-mitigations", "bad", *broken(mine))
    result.stdout.fnmatch_lines(
        [f"{mine.path}/mine/workloads.py:{line_of('Steady')}: run() returned passed=False (workload_failed in run)"]
    )


def broken(stage: Stage) -> tuple[str, str]:
    stage.write_registry(mitigations={"bad": {"BROKEN": "1"}})
    return "--aorta-registry-file", str(stage.path / "registry.json")


CONFTEST = """
    import pytest

    @pytest.fixture(autouse=True, scope="module")
    def _of_a_module(request):
        print("module of", request.node.nodeid, request.module.__name__, request.module.__file__)

    @pytest.fixture(autouse=True)
    def _of_a_test(request):
        print("test in", request.node.module.__name__, request.fspath)

    def pytest_runtest_setup(item):
        print("hook of the conftest")
    """


def test_module_fixtures_and_conftest_hooks_apply_to_trials(mine: Stage) -> None:
    mine.write_file("conftest.py", CONFTEST)
    result = mine.run_here("steady[local-none-0]", "--aorta-trials", "1", "-s")
    result.assert_outcomes(passed=1)
    file = mine.path / "mine/workloads.py"
    result.stdout.fnmatch_lines(["*module of aorta mine.workloads " + str(file), "test in mine.workloads " + str(file)])
    result.stdout.fnmatch_lines(["*hook of the conftest"])


@pytest.mark.slow
def test_last_failed_runs_the_failed_trials_beside_failed_tests(mine: Stage) -> None:
    mine.write_file("tests/test_it.py", "def test_bad(): assert False\ndef test_good(): pass")
    options = (*broken(mine), "--aorta-mitigations", "none", "--aorta-mitigations", "bad", "--aorta-trials", "1", "-v")
    mine.run_here(*options).assert_outcomes(passed=3, failed=3)
    again = mine.run_here(*options, "--lf")
    assert {*mine.words(again)} == {"steady[local-bad-0]", "other[local-bad-0]"}
    again.assert_outcomes(failed=3, deselected=2)
    again.stdout.fnmatch_lines(
        [
            "warning: the table has 2 of 4 trials: those that had failed (--lf), *",
            "earlier results: results/.history/2*",
        ]
    )
