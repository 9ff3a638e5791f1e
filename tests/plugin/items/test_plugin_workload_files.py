"""``pytest repro.py``: the Workload classes of a file are collected, and nothing of the file runs in pytest itself."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.stage import Stage

from pytest_aorta.plugin.workload_files import what_lacks, workload_facts

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
    classes = ["Derived", "Dotted", "Structural", "Grandchild", "a-name"]
    assert names(stage, "mixed.py") == [f"mixed.py::{name}[local-none-0]" for name in classes]
    result = stage.run_here("mixed.py", "-v")
    result.assert_outcomes(passed=len(classes))
    assert stage.files() == sorted(f"{name}/trial_0.json" for name in classes)
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


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize(
    "sources", [["class Broken(:\n    pass\n", "x = '\n", "\0"], ["", "def setup(): pass\n", "class A: pass\n"]]
)
def test_files_without_a_workload_are_left_to_pytest(stage: Stage, sources: list[str]) -> None:
    files = [stage.write_file(f"repro_{number}.py", source).name for number, source in enumerate(sources)]
    (stage.path / "conftest.py").write_text("")
    ours = stage.run_here(*files)
    theirs = stage.run("-p", "no:aorta", *files)
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


# Where nothing was collected, what classes lack is said

CASES = {
    "no run": ("class A:\n    def setup(self): pass", "A has no run()"),
    "no setup": ("class A:\n    def run(self): pass", "A has no setup()"),
    "a declared one": (
        "from pytest_aorta import Workload\nclass A(Workload):\n    def run(self): pass",
        "A has no setup()",
    ),
    "base in the file": (
        "class A:\n    def run(self): pass\nclass B(A): pass",
        "A has no setup(); B has no setup()",
    ),
    "a script": ("import sys\nprint(sys.argv)", "it defines none; a script runs as it is with --aorta-command"),
    "circular": ("class A(B):\n    def run(self): pass\nclass B(A): pass", "A has no setup(); B has no setup()"),
}


@pytest.mark.parametrize(("source", "said"), CASES.values(), ids=CASES)
def test_what_a_class_lacks_is_said(tmp_path: Path, source: str, said: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(source)
    assert what_lacks(path).startswith(said)
    assert list(workload_facts(path).workloads) == []


@pytest.mark.parametrize("source", ["import sys", "class A:\n    def fit(self): pass", "class A(B): pass", "def f(:"])
def test_where_no_trials_were_asked_for_nothing_is_said_of_what_is_not_like_a_workload(
    tmp_path: Path, source: str
) -> None:
    path = tmp_path / "helpers.py"
    path.write_text(source)
    assert what_lacks(path, wanted=False) == ""


@pytest.mark.parametrize("options", [("--aorta-trials", "2"), ("-n", "1")], ids=" ".join)
def test_it_stands_where_pytest_says_that_it_has_collected_nothing(stage: Stage, options: tuple[str, ...]) -> None:
    stage.write_file("my repro.py", textwrap.dedent(CASES["no run"][0]))
    result = stage.run("my repro.py", *options)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["no workload in my repro.py: A has no run(); a workload has setup() and run(), *"])


@pytest.mark.usefixtures("as_users_have_it")
def test_a_script_that_fails_when_it_is_imported_is_named_with_the_option_that_runs_it(stage: Stage) -> None:
    stage.write(train="import sys\nprint(sys.argv[sys.argv.index('--steps')])")
    stage.write(test_train="import nothing\ndef test_it(): pass")
    hint = "train.py: a script runs as it is with --aorta-command 'python train.py'"
    result = stage.run_here("train.py", "test_train.py", "--aorta-trials", "2")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert [line for line in result.outlines if "--aorta-command" in line] == [hint]
    stage.run_here("train.py").stdout.no_fnmatch_line("*--aorta-command*")


@pytest.mark.parametrize(("options", "is_said"), [((), True), (("--aorta-workload", "gemm", "-k", "nowhere"), False)])
def test_trials_of_nothing_are_named_with_what_they_could_be_of(
    stage: Stage, options: tuple[str, ...], is_said: bool
) -> None:
    result = stage.run_here("--aorta-trials", "3", *options)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert any(line.startswith("no trials: of what?") for line in result.outlines) == is_said
