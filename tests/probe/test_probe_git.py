"""The state of the repository that holds a workload's source, in real repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_aorta.probe.guard import Facts, Guard
from pytest_aorta.probe.software import git_state


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
