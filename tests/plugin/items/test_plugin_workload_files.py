"""``pytest repro.py``: the Workload classes of a file are collected, and nothing of the file runs in pytest itself."""

from __future__ import annotations

import pytest
from support.stage import Stage

MIXED = """
import abc

import pytest_aorta
from pytest_aorta import Workload, WorkloadResult

class Derived(Workload):
    def setup(self): pass
    def run(self): return WorkloadResult(passed=True)

class Dotted(pytest_aorta.Workload):
    def setup(self): pass
    def run(self): return WorkloadResult(passed=True)

class Structural:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": True}

class Grandchild(Structural):
    pass

class Named(Structural):
    name = "a-name"

class Abstract(Workload):
    def setup(self): pass
    @abc.abstractmethod
    def run(self): ...

class Unfinished(Structural):
    def run(self):
        raise NotImplementedError

class _Private(Structural):
    pass

class NoRun:
    def setup(self): pass

class Config:
    pass

def function(): pass
"""


def names(stage: Stage, *arguments: str) -> list[str]:
    result = stage.run_here("--collect-only", "-q", *arguments)
    return [line for line in result.outlines if "::" in line]


def test_concrete_public_classes_are_collected(stage: Stage) -> None:
    stage.write(mixed=MIXED)
    found = ["Derived", "Dotted", "Structural", "Grandchild", "a-name"]
    assert names(stage, "mixed.py") == [f"mixed.py::{name}[local-none-0]" for name in found]
    result = stage.run_here("mixed.py", "-v")
    result.assert_outcomes(passed=len(found))
    assert stage.files() == sorted(f"{name}/trial_0.json" for name in found)
    assert {trial["execution_env"]["source_package"] for trial in stage.trials().values()} == {"pytest-aorta"}


def test_one_class_or_trial_of_a_file_can_be_named(stage: Stage) -> None:
    stage.write(mixed=MIXED)
    assert names(stage, "mixed.py::Grandchild", "--aorta-trials", "2") == [
        "mixed.py::Grandchild[local-none-0]",
        "mixed.py::Grandchild[local-none-1]",
    ]
    one = "mixed.py::a-name[local-none-1]"
    assert names(stage, one, "--aorta-trials", "2") == [one]
    assert names(stage, "mixed.py", "-k", "Dotted or a-name") == [
        "mixed.py::Dotted[local-none-0]",
        "mixed.py::a-name[local-none-0]",
    ]
    missing = stage.run_here("mixed.py::Missing")
    assert missing.ret == pytest.ExitCode.USAGE_ERROR
    missing.stderr.fnmatch_lines(["ERROR: not found: *mixed.py::Missing"])


def test_classes_in_a_file_with_tests_are_helpers(stage: Stage) -> None:
    classes = """
from unittest import TestCase
from pytest_aorta import Workload

class Helper(Workload):
    def setup(self): pass
    def run(self): return {"passed": True}

class Structural:
    def setup(self): pass
    def run(self): pass
"""
    tests = {
        "test_function": "def test_function(): pass\n",
        "test_class": "class TestClass:\n    def test_method(self): pass\n",
        "test_case": "class Case(TestCase):\n    def test_case(self): pass\n",
    }
    for name, text in tests.items():
        stage.write_file(f"{name}.py", f"{classes}\n{text}")
    result = stage.run_here(*(f"{name}.py" for name in tests))
    result.assert_outcomes(passed=3)
    assert not stage.results.exists()
    assert stage.run_here("test_case.py::Helper").ret == pytest.ExitCode.USAGE_ERROR
    nothing = stage.run_here("test_function.py", "--aorta-seed", "1", "-k", "nothing")
    nothing.stdout.fnmatch_lines(["no workload in test_function.py: it has tests, whose classes are helpers: *"])
    assert not stage.results.exists()


def test_two_classes_of_one_name_are_refused(stage: Stage) -> None:
    source = """
    class Same:
        def __init__(self, config): pass
        def setup(self): pass
        def run(self): return {"passed": True}
    """
    stage.write(one=source, two=source)
    result = stage.run_here("one.py", "two.py")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*two workloads are named 'Same': *one.py:Same and *two.py:Same; *"])
    assert not stage.results.exists()


@pytest.mark.parametrize(
    "source", ["class Broken(:\n    pass\n", "x = '\n", "\0", "", "def setup(): pass\n", "class A: pass\n"]
)
def test_file_without_a_workload_is_left_to_pytest(stage: Stage, source: str) -> None:
    (stage.path / "repro.py").write_text(source)
    (stage.path / "conftest.py").write_text("")
    ours = stage.run_here("repro.py")
    theirs = stage.run("-p", "no:aorta", "repro.py")
    assert ours.ret == theirs.ret
    assert _untimed(ours) == _untimed(theirs)
    assert not stage.results.exists()


def _untimed(result: pytest.RunResult) -> list[str]:
    """Output without what differs anyway: the list of plugins, the duration, and frames of hooks around others."""
    return [line for line in result.outlines if not line.startswith(("plugins:", "=")) and "/pytest_aorta/" not in line]


def test_file_with_workloads_only_is_not_imported_by_pytest(stage: Stage) -> None:
    stage.write(
        alone="""
        import os
        import sys

        if os.path.basename(sys.argv[0]) in ("pytest", "__main__.py"):
            raise RuntimeError("imported by pytest")

        class Alone:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": "_pytest" not in sys.modules}
        """
    )
    stage.run_here("alone.py").assert_outcomes(passed=1)
