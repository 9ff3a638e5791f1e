"""``--version``, ``--help`` and ``--collect-only`` import neither torch nor pydantic, and create no file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.stage import PYTEST, Stage

#: Slow to import, and of no use before a trial's result is there.
HEAVY = {"torch", "pydantic", "numpy"}

GEMM = ("--aorta-workload", "gemm")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("--help", *GEMM),
        ("--collect-only", "-q", "simple.py"),
        ("--collect-only", "-q", *GEMM, "--aorta-trials", "10000"),
        ("--collect-only", "-q", *GEMM, "--aorta-workload", "fsdp", "--aorta-mitigations", "tf32_off", "test_other.py"),
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported_and_no_file_is_made(simple: Stage, arguments: tuple[str, ...]) -> None:
    before = {path for path in simple.path.rglob("*") if not _scratch(path)}
    command = (sys.executable, "-X", "importtime", "-m", "pytest", "-p", "no:hypothesispytest")
    result = simple.command(*command, *arguments)
    assert result.ret == pytest.ExitCode.OK
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in result.errlines if "import time:" in line}
    assert "pytest" in imported
    assert imported & HEAVY == set()
    assert {path for path in simple.path.rglob("*") if not _scratch(path)} == before
    if "10000" in arguments:
        result.stdout.fnmatch_lines(["aorta::gemm?local-none-0?", "aorta::gemm?local-none-9999?", "10000 tests *"])
        assert sum(line.startswith("aorta::gemm[") for line in result.outlines) == 10_000


def test_very_many_trials_are_collected_without_a_full_pass_of_the_garbage_collector(stage: Stage) -> None:
    """Each walks all of them. With 4,000 trials there was one, with 10,000 there were two or three."""
    stage.write(
        conftest="""
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
    )
    result = stage.command(*PYTEST, "--collect-only", "-q", *GEMM, "--aorta-trials", "4000")
    result.stdout.fnmatch_lines(["full passes: 0"])


def _scratch(path: Path) -> bool:
    """Written by pytest, Python or pytester themselves."""
    return not {"__pycache__", ".pytest_cache", "stdout", "stderr"}.isdisjoint(path.parts)
