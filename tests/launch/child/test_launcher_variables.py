"""What a launcher has set for its ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pytest_aorta.launch.child.workload_main import launcher_variables


@pytest.fixture
def base() -> Iterator[int]:
    """A process that was started with these variables, and these only."""
    variables = {"OMP_NUM_THREADS": "4", "NCCL_DEBUG": "INFO", "HOME": "/home/me"}
    command = [sys.executable, "-I", "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate(b"\n")


def test_what_is_new_or_has_another_value_is_the_launchers(base: int) -> None:
    environ = {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO", "RANK": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}

    assert launcher_variables(base, environ) == {
        "OMP_NUM_THREADS": "1",
        "RANK": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def test_what_may_not_be_recorded_is_left_out(base: int) -> None:
    assert launcher_variables(base, {"HF_TOKEN": "x", "TORCH_API_TOKEN": "x", "HOME": "/elsewhere"}) == {}


def test_without_a_process_to_compare_with_there_are_none() -> None:
    assert launcher_variables(None, {"RANK": "1"}) == {}
    assert launcher_variables(2**31 - 1, {"RANK": "1"}) == {}
    assert launcher_variables(os.getpid(), dict(os.environ)).keys() <= {"PYTEST_CURRENT_TEST", *os.environ}
