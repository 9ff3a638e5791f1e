"""Ranks run on the oldest torch that pyproject.toml promises, and on the newest that the package index has.

Slow, and in need of a package index: `AORTA_TORCH_VERSIONS=1 pytest tests/downstream -m downstream`. An index without
CPU builds sends some gigabytes for each version; `PIP_EXTRA_INDEX_URL`, or pip's configuration, may name another one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pip_environments import ROOT, copy_of_this_project, environ_without_this_run, pip

pytestmark = [
    pytest.mark.downstream,
    pytest.mark.skipif(
        "AORTA_TORCH_VERSIONS" not in os.environ,
        reason="downloads gigabytes of torch; AORTA_TORCH_VERSIONS=1 has it done",
    ),
]

#: Longest time in seconds for the tests.
PATIENCE = 1800

#: The private names of torch, one by one; forks of builds for GPUs, which package indexes have; two ranks, one that
#: fails, restarts, a hang, under both launchers.
SMOKE = (
    "tests/launch/child/test_recorder.py",
    "tests/launch/child/test_rendezvous.py",
    "tests/probe/test_probe_torch.py",
    "tests/acceptance/test_elastic.py::test_the_life_of_the_worker_group_and_the_result_of_each_rank_are_recorded",
    "tests/acceptance/test_elastic.py::test_a_rank_that_fails_once_is_started_again",
    "tests/acceptance/test_elastic.py::test_a_rank_that_ignores_sigterm_is_not_waited_for",
    "tests/acceptance/test_elastic.py::test_no_rank_outlives_its_agent",
    "tests/acceptance/test_elastic.py::test_both_are_so_under_torchrun",
    "tests/acceptance/test_elastic.py::test_the_flight_recorder_tells_who_is_missing_where_stacks_do_not",
    "tests/acceptance/test_elastic.py::test_the_options_reach_the_ranks_and_local_results_are_put_together",
)


def _oldest() -> str:
    promised = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert promised is not None
    return f"torch=={promised[1]}.*"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Removed at once: it takes gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def _python_with(torch: str, folder: Path) -> Path:
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    project = copy_of_this_project(folder / "project")
    pip(python, "install", "--no-cache-dir", torch, f"{project}[timeout,xdist]", "hypothesis", "jsonschema")
    return python


@pytest.mark.parametrize("torch", [_oldest(), "torch"], ids=["oldest", "newest"])
def test_ranks_run(torch: str, folder: Path) -> None:
    python = _python_with(torch, folder)
    command = [str(python), "-m", "pytest", "-m", "", "-p", "no:cacheprovider", "--basetemp", str(folder / "tmp")]
    done = subprocess.run([*command, *SMOKE], cwd=ROOT, env=environ_without_this_run(), timeout=PATIENCE, check=False)
    assert done.returncode == 0
