"""Installed but unused, the plugin costs nothing: no import, no call per test that runs, no file read twice.

The counts stand for the time, which no busy machine can tell; ``python -m benchmarks --only unused`` measures it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import call_counter
from support.stage import NO_SETTINGS, PYTEST, Stage

from pytest_aorta.settings import SETTINGS

pytestmark = pytest.mark.usefixtures("as_users_have_it")

#: All that pytest imports of this package at its start.
AT_START = [
    "pytest_aorta",
    "pytest_aorta.common",
    "pytest_aorta.settings",
    "pytest_aorta.plugin",
    "pytest_aorta.plugin.hooks",
    "pytest_aorta.plugin.hookspecs",
    "pytest_aorta.plugin.options",
]

#: The hooks of a session without trials. None of them is called for a test that runs.
HOOKS = [
    "pytest_addhooks",
    "pytest_addoption",
    "pytest_collect_file",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_generate_tests",
    "pytest_load_initial_conftests",
    "pytest_make_collect_report",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]


def write_tests(stage: Stage, files: int, tests: int) -> list[str]:
    text = "\n".join(f"def test_{number}(tmp_path): pass" for number in range(tests))
    return [str(stage.write_file(f"test_{number}.py", text)) for number in range(files)]


def counted(stage: Stage, *arguments: str) -> dict[str, Any]:
    file = stage.path / "counts.json"
    support = str(Path(call_counter.__file__).parents[1])
    # Stages set an option of ours.
    env = {call_counter.FILE: str(file), "PYTHONPATH": support, **NO_SETTINGS}
    result = stage.run("-p", "support.call_counter", *arguments, env=env)
    assert result.ret == pytest.ExitCode.OK
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_tests_without_trials_import_a_handful_of_modules_and_call_nothing_when_they_run(stage: Stage) -> None:
    files = write_tests(stage, files=3, tests=10)
    stage.write_file("settings.toml", "")  # no recipe
    found = counted(stage, *files)
    assert found["modules"]["run"] == found["modules"]["start"] == sorted(AT_START)
    assert found["calls"]["run"] == {}
    # Of a test function, the names of its fixtures are compared, and of a file its name. pytest lists a folder again
    # for each of its files that is an argument.
    looked_at = found["calls"]["collect"].pop("hooks.pytest_collect_file")
    assert looked_at <= len(files) * len(list(stage.path.iterdir()))
    # Of the session, the folder and each file: it is called, and then goes on.
    assert found["calls"]["collect"].pop("hooks.pytest_make_collect_report") <= 2 * (2 * len(files) + 2)
    assert found["calls"]["collect"] == {"hooks.pytest_generate_tests": 30}
    assert found["hooks"] == HOOKS
    # An option is defined, declared with its help text, and looked for in an ini file, in one loop.
    assert sum(found["calls"]["start"].values()) <= 5 * len(SETTINGS) + 20


def test_few_objects_are_left_for_the_garbage_collector_to_walk(stage: Stage) -> None:
    stage.write(
        conftest="""
        import gc

        def pytest_collection():
            gc.collect()
            print("objects:", len(gc.get_objects()))
        """
    )
    write_tests(stage, files=1, tests=1)

    def objects(*options: str) -> int:
        result = stage.command(*PYTEST, "-s", *options, env=NO_SETTINGS)
        (line,) = (line for line in result.outlines if line.startswith("objects:"))
        return int(line.split()[1])

    assert (
        objects() - objects("-p", "no:aorta") <= 9 * len(SETTINGS) + 80
    )  # of argparse, pytest, the table; and the readers


def test_files_that_are_given_are_parsed_once_and_only_if_their_text_may_have_workloads(stage: Stage) -> None:
    files = write_tests(stage, files=12, tests=1)
    for number in range(3):
        methods = "    def setup(self): pass\n    def run(self): pass"
        files.append(str(stage.write_file(f"idle_{number}.py", f"class Idle{number}:\n{methods}")))
    found = counted(stage, *files, "--collect-only")
    calls = Counter(found["calls"]["start"]) + Counter(found["calls"]["collect"])
    # To decide whether to look closer, and then, of those with workloads, again.
    assert calls["__init__.may_have_workloads"] <= 2 * len(files)
    assert calls["workload_files._methods"] == 3  # of the class of each file that is parsed


@pytest.mark.slow
def test_hooks_of_trials_come_with_the_first_trial(stage: Stage) -> None:
    (file,) = write_tests(stage, files=1, tests=1)
    stage.write(idle="class Idle:\n    def setup(self): pass\n    def run(self): pass")
    stage.write(test_starts="def test_starts(request): request.getfixturevalue('aorta_run')")
    assert "pytest_runtest_makereport" in counted(stage, file, "idle.py", "--collect-only")["hooks"]
    assert "pytest_runtest_makereport" in counted(stage, file, "test_starts.py")["hooks"]


def test_an_xdist_controller_looks_at_reports_and_once_at_what_each_worker_collects(stage: Stage) -> None:
    write_tests(stage, files=2, tests=10)
    found = counted(stage, "-n", "2")
    assert found["hooks"] == sorted([*HOOKS, "pytest_runtest_logreport", "pytest_xdist_node_collection_finished"])
    assert found["calls"]["run"].pop("hooks.pytest_runtest_logreport") == 60
    # The name of the run, for its two workers.
    assert sum(found["calls"]["run"].values()) <= 10


@pytest.mark.slow
def test_a_test_that_starts_trials_in_a_worker_is_noticed_by_the_controller(stage: Stage) -> None:
    stage.write(
        test_starts="""
        class Idle:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": True}

        def test_starts(aorta_run): assert aorta_run(Idle).result.passed
        def test_by_name(request): assert request.getfixturevalue("aorta_run")(Idle).result.passed
        """
    )
    result = stage.run("-n", "2")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*= trials =*", *["test_starts.py::test_*0 of 1*"] * 2])
    assert len(stage.files()) == 2


def test_it_is_not_to_be_seen(simple: Stage) -> None:
    result = simple.run_here("-v", "test_other.py")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("aorta: *")
    result.stdout.no_fnmatch_line("*= trials =*")
    assert not simple.results.exists()
    assert simple.left_running() == []
