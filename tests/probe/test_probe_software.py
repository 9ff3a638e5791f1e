"""The software of a trial: installed distributions, and the repository of the workload, in real repositories."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_aorta.probe.guard import Facts, Guard
from pytest_aorta.probe.software import git_state, installed_distributions, packages


def test_relevant_versions_and_a_digest_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    def install(site: Path, name: str, version: str) -> Path:
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return folder

    install(first, "Torch", "2.13.0")
    install(first, "nvidia_nccl.cu12", "2.21.5")
    leftpad = install(first, "leftpad", "1.0")
    install(second, "torch", "2.0.0")  # which is not the one that is imported
    (first / "~orch-2.9.dist-info").mkdir()  # the remains of an interrupted installation
    monkeypatch.setattr(sys, "path", [str(first), str(second)])
    text = "leftpad==1.0\nnvidia-nccl-cu12==2.21.5\ntorch==2.13.0\n"
    guard = Guard()
    assert packages(installed_distributions(guard)) == {
        "versions": {"nvidia-nccl-cu12": "2.21.5", "torch": "2.13.0"},
        "count": 3,
        "digest": "sha256:" + hashlib.sha256(text.encode()).hexdigest(),
    }
    assert guard.reasons == []

    (leftpad / "METADATA").write_bytes(b"Name: \xff\xfe\n")
    assert packages(installed_distributions(guard))["count"] == 2
    (reason,) = guard.reasons
    assert reason.startswith("packages: 1 distribution(s) unreadable, the first: UnicodeDecodeError: ")


def test_the_packages_of_this_interpreter_are_those_that_importlib_finds() -> None:
    named = {(d.metadata["Name"], d.metadata["Version"]) for d in importlib.metadata.distributions()}
    known = installed_distributions(Guard())
    assert {re.sub(r"[-_.]+", "-", name).lower() for name, _ in named} == set(known)
    assert set(known.values()) <= {version for _, version in named}


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """A committed file in a repository on the branch ``trunk``."""
    source = tmp_path / "repo" / "pkg" / "workload.py"
    source.parent.mkdir(parents=True)
    source.write_text("x = 1\n")
    repository = tmp_path / "repo"
    git(repository, "init", "--quiet", "--initial-branch=trunk")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "first")
    return source


def state(source: Path) -> Facts:
    guard = Guard()
    found = git_state(source, guard)
    assert guard.reasons == []
    return found or {}


def test_a_checkout_with_results_beside_its_source(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = {
        "root": str(workload.parents[1].resolve()),
        "commit": git(workload.parent, "rev-parse", "HEAD"),
        "branch": "trunk",
        "dirty": False,
        "changed_files": 0,
        "source_tracked": True,
    }
    (workload.parent / "results.json").write_text("{}")
    git(workload.parent, "init", "--quiet", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))  # as within a hook of git
    assert state(workload) == clean
    monkeypatch.delenv("GIT_DIR")

    git(workload.parent, "checkout", "--quiet", "--detach")
    workload.write_text("x = 2\n")
    assert state(workload) == {**clean, "dirty": True, "changed_files": 1, "branch": None}
    workload.write_text("x = 1\n")
    new = workload.with_name("[new]*.py")
    new.write_text("y = 1\n")
    assert state(new) == {**clean, "branch": None, "source_tracked": False}


def test_a_repository_without_a_commit_has_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=trunk")
    found = state(tmp_path)
    assert (found["commit"], found["branch"], found["dirty"]) == (None, "trunk", False)


def test_nothing_outside_of_a_repository_or_without_git(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_state(tmp_path / "workload.py", Guard()) is None
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert git_state(workload, Guard()) is None


def test_a_broken_repository_is_a_reason_not_an_absence(workload: Path) -> None:
    (workload.parents[1] / ".git" / "HEAD").write_text("rubbish")
    guard = Guard()
    found = git_state(workload, guard)
    assert found is not None
    assert found["commit"] is None
    said = "ToolFailed: git exited with 128: fatal: not a git repository"
    assert [reason.partition(said)[:2] for reason in guard.reasons] == [("git.status: ", said), ("git.tracked: ", said)]
