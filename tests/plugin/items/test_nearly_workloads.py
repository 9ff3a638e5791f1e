"""A file from which nothing was collected, although trials were wanted: what its classes lack is said."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.stage import Stage

from pytest_aorta.plugin.workload_files import what_lacks, workload_facts

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
