"""Compilers on PATH: this machine's, and shell scripts as doubles."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_aorta.probe import accelerator as module
from pytest_aorta.probe.accelerator import compilers
from pytest_aorta.probe.guard import Guard

NVCC = "echo 'nvcc: NVIDIA (R) Cuda compiler driver'; echo 'Cuda compilation tools, release 12.4, V12.4.131'"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def double(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_the_compiler_of_this_machine() -> None:
    guard = Guard()
    found = compilers(guard)["gcc"]
    assert found["path"] == shutil.which("gcc")
    said = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
    assert said.strip() in found["version"]
    assert guard.reasons == []


def test_doubles_say_their_version_in_the_line_that_has_it(path: Path) -> None:
    double(path, "nvcc", NVCC)
    double(path, "hipcc", "echo 'HIP version: 6.2.41133'; echo 'AMD clang version 18.0.0git'")
    double(path, "clang", "echo 'clang version 18.1.3'; echo 'Target: x86_64'")
    guard = Guard()
    assert compilers(guard) == {
        "gcc": None,
        "g++": None,
        "clang": {"path": str(path / "clang"), "version": "clang version 18.1.3"},
        "hipcc": {"path": str(path / "hipcc"), "version": "HIP version: 6.2.41133"},
        "nvcc": {"path": str(path / "nvcc"), "version": "Cuda compilation tools, release 12.4, V12.4.131"},
    }
    assert guard.reasons == []


def test_one_that_hangs_or_fails_is_a_reason_and_hides_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    double(path, "hipcc", "exec /bin/sleep 600")
    double(path, "clang", "exit 0")
    double(path, "g++", "echo 'no licence' >&2; exit 3")
    (path / "gcc").write_text("not a program")
    (path / "gcc").chmod(0o755)
    double(path, "nvcc", NVCC)
    monkeypatch.setattr(module, "_TIMEOUT_SEC", 1.0)
    guard = Guard()
    found = compilers(guard)
    assert found["hipcc"] == {"path": str(path / "hipcc"), "version": None}
    assert found["nvcc"]["version"].endswith("V12.4.131")
    assert [reason.split(": ")[:2] for reason in guard.reasons] == [
        ["compilers.gcc", "OSError"],
        ["compilers.g++", "ToolFailed"],
        ["compilers.clang", "ToolFailed"],
        ["compilers.hipcc", "ToolTimedOut"],
    ]
