"""Existing tests as trials: ``pytest test_x.py --aorta-trials 3``, and ``@pytest.mark.aorta(trials=6)`` on any test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage

CONFTEST = """
import os
import pytest

def pytest_addoption(parser):
    parser.addoption("--device", default="none")

@pytest.fixture(scope="session", autouse=True)
def server():
    with open("servers.txt", "a") as file:
        file.write(f"{os.getpid()} {os.environ.get('AORTA_TRIAL_DIR', 'outside')}\\n")
    yield os.getpid()

@pytest.fixture
def aorta_extra_env():
    return {"SEEN_EXTRA": "1"}
"""

TESTS = """
import os
import signal
import unittest
import pytest

@pytest.fixture
def port(): raise OSError("no port")

@pytest.fixture
def leaves():
    yield
    raise RuntimeError("still open")

def test_inside(server, request, tmp_path, pytestconfig):
    print("said inside")
    assert (server, list(tmp_path.iterdir())) == (os.getpid(), [])
    assert (request.config.getoption("--device"), pytestconfig.getini("empty_parameter_set_mark")) == ("cpu", "xfail")
    assert os.environ["SEEN_EXTRA"] == "1"

@pytest.mark.aorta(mitigations=["none", "omp_1"])
@pytest.mark.parametrize("threads", ["1"])
def test_variable(threads):
    assert os.environ.get("OMP_NUM_THREADS") == threads

def test_fixture_fails(port): pass

def test_teardown_fails(leaves): pass

@pytest.mark.skipif("os.environ.get('SEEN_EXTRA') == '1'", reason="one thread only")
def test_skipped(): pass

@pytest.mark.xfail
def test_expected_to_fail(): assert 0

@pytest.mark.xfail(strict=True)
def test_passes_unexpectedly(): pass

def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)

class TestClass:
    @classmethod
    def setup_class(cls): cls.process = os.getpid()
    def test_method(self): assert self.process == os.getpid()

class Case(unittest.TestCase):
    def test_case(self): self.assertEqual(1, 2)

def test_deselected(): assert 0

def documented():
    '''
    >>> 1 + 1
    2
    '''
"""

#: Exit status, phase and type of the failure, and words of its message.
OUTCOMES: dict[str, tuple[Any, ...]] = {
    "test_inside": ("ok", None, None, ""),
    "test_variable[1]": ("workload_failed", "run", "AssertionError", "assert None == '1'"),
    "test_fixture_fails": ("workload_failed", "setup", "OSError", "in setup: no port"),
    "test_teardown_fails": ("workload_failed", "run", "RuntimeError", "in teardown: still open"),
    "test_skipped": ("infrastructure_failed", "run", "CannotJudge", "one thread only"),
    "test_expected_to_fail": ("ok", None, None, ""),
    "test_passes_unexpectedly": ("workload_failed", "run", None, "[XPASS(strict)]"),
    "test_crashes": ("workload_failed", "run", None, "ended by SIGSEGV in run()"),
    "TestClass::test_method": ("ok", None, None, ""),
    "Case::test_case": ("workload_failed", "run", "AssertionError", "1 != 2"),
    "test_things.documented": ("ok", None, None, ""),
}


@pytest.fixture
def things(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    stage.write(conftest=CONFTEST)
    stage.write(**{"tests/test_things": TESTS})
    return stage


@pytest.mark.slow
def test_every_selected_test_is_a_trial_of_every_cell(things: Stage) -> None:
    result = things.run(
        *("tests", "-k", "not deselected", "--device=cpu", "-o", "empty_parameter_set_mark=xfail", "-vrA"),
        *("--doctest-modules", "--aorta-isolation", "fork", "--aorta-trials", "1"),
    )
    records: dict[str, dict[str, Any]] = {}
    for record in things.trials().values():
        name = record["workload"].removeprefix("tests/test_things.py::")
        records.setdefault(name, {})[record["mitigations_applied"][0]] = record
    assert records["test_variable[1]"].pop("omp_1")["exit_status"] == "ok"
    assert records.keys() == OUTCOMES.keys()
    for name, (status, phase, kind, message) in OUTCOMES.items():
        (record,) = records[name].values()
        failure = record["failure"] or {"phase": None, "type": None, "message": ""}
        assert (name, record["exit_status"], failure["phase"], failure["type"]) == (name, status, phase, kind)
        assert message in failure["message"]
    # Each process has had its own server, and pytest's own none.
    servers = (things.path / "servers.txt").read_text().splitlines()
    # Two cells of one test, and one test is skipped before it.
    assert len({line.split()[0] for line in servers}) == len(servers) == len(OUTCOMES)
    assert not [line for line in servers if line.endswith("outside")]
    # The frames of the test only, so that equal failures have equal signatures.
    text = records["Case::test_case"]["none"]["failure"]["traceback"]
    assert 'test_things.py", line ' in text
    assert "pluggy" not in text
    counts = result.parseoutcomes()
    assert (counts["passed"], counts["failed"], counts["skipped"]) == (5, 6, 1)
    result.stdout.fnmatch_lines_random(
        [
            "*tests/test_things.py::test_variable[[]1-local-omp_1-0[]] PASSED*",
            "tests/test_things.py::test_variable[[]1[]]*",
            "SKIPPED [[]1[]] tests/test_things.py:*: one thread only",
            "FAILED tests/test_things.py::test_fixture_fails[[]local-none-0[]] - OSError: *",
        ]
    )
    (log,) = things.results.glob("*test_inside*/trial_0/stdout.log")
    assert "1 passed" in log.read_text()


@pytest.mark.slow
def test_a_marker_asks_for_trials_and_a_resumed_run_has_those_that_the_test_is_still_the_same_for(stage: Stage) -> None:
    stage.write(
        test_marked="""
        import os
        import unittest
        import pytest

        @pytest.mark.aorta(trials=2)
        def test_marked(): assert "AORTA_TRIAL_DIR" in os.environ

        def test_plain(): assert "AORTA_TRIAL_DIR" not in os.environ

        @pytest.mark.aorta(trials=1, mitigations=["none", "omp_1"])
        class Case(unittest.TestCase):
            def test_case(self): self.assertIn("AORTA_TRIAL_DIR", os.environ)
        """
    )
    result = stage.run("-v")
    result.assert_outcomes(passed=5)
    assert len(stage.files()) == 4
    result.stdout.fnmatch_lines(["test_marked.py::test_marked local-none", "*0 of 2*"])
    one = "test_marked.py::test_marked[local-none-1]"
    before = stage.trials()
    again = stage.run(one, "--aorta-resume", "-v")
    again.assert_outcomes(passed=1)
    assert stage.trials() == before
    file = stage.path / "test_marked.py"
    file.write_text(file.read_text().replace("def test_marked():", "def test_marked(tmp_path):"))
    stage.run(one, "--aorta-resume").assert_outcomes(passed=1)
    changed = [name for name, record in stage.trials().items() if record != before[name]]
    assert len(changed) == 1


def test_what_cannot_be_a_trial_runs_once_and_says_so(stage: Stage) -> None:
    stage.write(
        test_here="""
        import os
        import pytest

        @pytest.mark.xdist_group("one")
        def test_grouped(): assert "AORTA_TRIAL_DIR" not in os.environ

        def test_plain(): pass
        """
    )
    for options, why in (
        ((), "its xdist_group has tests that run in one process"),
        (("--pdb",), "a debugger (--pdb, --trace) is of no use in the process of a trial"),
        (("--aorta-isolation", "none"), "--aorta-isolation none leaves a trial no process of its own"),
    ):
        result = stage.run_here("test_here.py", "--aorta-trials", "2", "-k", "grouped", *options)
        assert result.parseoutcomes()["passed"] == 1
        result.stdout.fnmatch_lines([f"*PytestWarning: test_here.py::test_grouped runs once, and not as trials: {why}"])
        assert not stage.results.exists()


@pytest.mark.slow
def test_options_that_choose_tests_or_report_stay_outside(stage: Stage) -> None:
    stage.write(test_it="def test_it(): pass")
    stage.write_file("pytest.ini", "[pytest]\naddopts = -n 2 --lf -m 'not slow' --junitxml=report.xml -x")
    stage.run("--aorta-trials", "2", "-k", "local").assert_outcomes(passed=2)
    assert not list(stage.results.rglob("*.xml"))
    (record, _) = stage.trials().values()
    assert record["config"]["arguments"] == ["-p", "no:hypothesispytest"]
    assert record["failure"] is None
    assert Path(record["config"]["rootdir"]) == stage.path


def test_a_name_selects_one_trial(stage: Stage) -> None:
    stage.write(test_it="import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n): pass")
    arguments = ("--collect-only", "-q", "--aorta-trials", "2")

    def names(*more: str) -> list[str]:
        return [line for line in stage.run_here(*arguments, *more).outlines if "::" in line]

    all_of_them = [f"test_it.py::test_it[{n}-local-none-{index}]" for n in (1, 2) for index in (0, 1)]
    assert names() == names("test_it.py::test_it") == all_of_them
    assert names(all_of_them[3]) == all_of_them[3:]
    assert names("-k", "test_it and local and none-1 and not 2-") == all_of_them[1:2]
