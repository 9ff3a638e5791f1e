"""``--version``, ``--help`` and ``--collect-only`` import neither torch nor pydantic, and create no file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.stage import Stage

#: Slow to import, and of no use before a trial's result is there.
HEAVY = {"torch", "pydantic", "numpy"}

GEMM = ("--aorta-workload", "gemm")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("--help", *GEMM),
        ("--collect-only", "-q", "simple.py"),
        ("--collect-only", "-q", *GEMM, "--aorta-trials", "4000", "--aorta-mitigations", "tf32_off"),
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported_and_no_file_is_made(simple: Stage, arguments: tuple[str, ...]) -> None:
    simple.write_file("conftest.py", PASSES)
    before = {path for path in simple.path.rglob("*") if not _scratch(path)}
    command = (sys.executable, "-X", "importtime", "-m", "pytest", "-p", "no:hypothesispytest")
    result = simple.command(*command, *arguments)
    assert result.ret == pytest.ExitCode.OK
    assert "pytest" in _imported(result)
    if heavy := _imported(result) & HEAVY:  # by other plugins that are installed
        assert heavy <= _imported(simple.command(*command, "--collect-only", "-p", "no:aorta"))
    assert {path for path in simple.path.rglob("*") if not _scratch(path)} == before
    if "4000" in arguments:
        names = [f"*::gemm?local-tf32_off-{number}?" for number in (0, 3999)]
        result.stdout.fnmatch_lines([*names, "full passes: 0", "4000 tests *"])


#: A full pass walks all items. Without care there were three.
PASSES = """
import gc

passes = []

def note(phase, info):
    passes.append((phase, info["generation"]))

def pytest_collection():
    gc.callbacks.append(note)

def pytest_collection_finish():
    gc.callbacks.remove(note)

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"full passes: {passes.count(('start', 2))}")
"""


def _imported(result: pytest.RunResult) -> set[str]:
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in result.errlines if "import time:" in line}


def _scratch(path: Path) -> bool:
    """Written by pytest, Python, pytester or pytest-benchmark themselves."""
    return not {"__pycache__", ".pytest_cache", "stdout", "stderr", ".benchmarks"}.isdisjoint(path.parts)
