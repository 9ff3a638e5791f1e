"""The state of the repository that holds a workload's source, in real repositories."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.probe import git as git_module
from pytest_aorta.probe.collect import collect_env, collect_static
from pytest_aorta.probe.git import git_state, git_state_now
from pytest_aorta.probe.guard import Facts, Guard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


def state(source: Path | None) -> Facts | None:
    guard = Guard()
    found, _ = git_state(source, guard)
    assert guard.reasons == []
    return found


def test_a_clean_checkout(workload: Path) -> None:
    repository = workload.parents[1]
    assert state(workload) == {
        "root": str(repository.resolve()),
        "commit": git(repository, "rev-parse", "HEAD"),
        "branch": "trunk",
        "dirty": False,
        "changed_files": 0,
        "source_tracked": True,
        "as_of": "cell",
        "watched_files": 1,
        "tracked_files": 1,
    }


def test_a_changed_tracked_file_makes_it_dirty(workload: Path) -> None:
    workload.write_text("x = 2\n")
    found = state(workload)
    assert found is not None
    assert found["dirty"] is True


def test_results_beside_the_source_do_not_make_it_dirty(workload: Path) -> None:
    (workload.parent / "results.json").write_text("{}")
    found = state(workload)
    assert found is not None
    assert found["dirty"] is False


def test_a_source_that_was_never_added_is_told_apart(workload: Path) -> None:
    new = workload.with_name("[new]*.py")
    new.write_text("y = 1\n")
    found = state(new)
    assert found is not None
    assert (found["dirty"], found["source_tracked"]) == (False, False)


def test_a_detached_head_has_no_branch(workload: Path) -> None:
    git(workload.parent, "checkout", "--quiet", "--detach")
    found = state(workload)
    assert found is not None
    assert found["branch"] is None
    assert found["commit"]


def test_a_repository_without_a_commit_has_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=trunk")
    found = state(tmp_path)
    assert found is not None
    assert (found["commit"], found["branch"], found["dirty"]) == (None, "trunk", False)


def test_a_git_hook_does_not_redirect_the_question(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    before = state(workload)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert state(workload) == before


def test_nothing_outside_of_a_repository(tmp_path: Path) -> None:
    assert state(tmp_path / "workload.py") is None


def test_nothing_without_git(workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert state(workload) is None


def test_a_broken_repository_is_a_reason_not_an_absence(workload: Path) -> None:
    (workload.parents[1] / ".git" / "HEAD").write_text("rubbish")
    guard = Guard()
    found, _ = git_state(workload, guard)
    assert found is not None
    assert found["commit"] is None
    said = "ToolFailed: git exited with 128: fatal: not a git repository"
    assert [reason.partition(said)[:2] for reason in guard.reasons] == [("git.tracked: ", said), ("git.status: ", said)]


def for_a_trial(source: Path, change: Callable[[], object]) -> Facts:
    """The state that a trial records after ``change``, which comes after the start of its cell."""
    guard = Guard()
    state, watch = git_state(source, guard)
    change()
    found = git_state_now(state, watch)
    assert found is not None
    assert guard.reasons == []
    return found


def test_an_unchanged_repository_costs_a_trial_no_process(workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process() -> None:
        monkeypatch.setattr(git_module, "ask", lambda *arguments: pytest.fail("git was asked"))

    found = for_a_trial(workload, no_process)
    assert (found["dirty"], found["as_of"]) == (False, "cell")


def test_an_edit_between_two_trials_is_recorded(workload: Path) -> None:
    found = for_a_trial(workload, lambda: workload.write_text("x = 22\n"))
    assert (found["dirty"], found["changed_files"], found["as_of"]) == (True, 1, "trial")


@pytest.mark.parametrize(
    "command",
    [("commit", "--quiet", "--allow-empty", "-m", "second"), ("checkout", "--quiet", "-b", "other"), ("pack-refs",)],
)
@pytest.mark.parametrize("worktree", [False, True])
def test_what_git_does_between_two_trials_is_noticed(
    workload: Path, command: tuple[str, ...], worktree: bool, tmp_path: Path
) -> None:
    if worktree:
        git(workload.parent, "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"))
        workload = tmp_path / "side" / "pkg" / "workload.py"
    found = for_a_trial(workload, lambda: git(workload.parent, *command))
    assert found["as_of"] == "trial"
    assert found["commit"] == git(workload.parent, "rev-parse", "HEAD")
    assert found["branch"] == git(workload.parent, "symbolic-ref", "--short", "HEAD")


def test_of_too_many_files_only_the_source_is_watched(workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workload.parent / "data.txt").write_text("1\n")
    git(workload.parent, "add", ".")
    git(workload.parent, "commit", "--quiet", "-m", "second")
    monkeypatch.setattr(git_module, "MOST_WATCHED", 1)
    found = for_a_trial(workload, lambda: (workload.parent / "data.txt").write_text("2 2\n"))
    assert (found["as_of"], found["dirty"]) == ("cell", False)
    assert (found["watched_files"], found["tracked_files"]) == (1, 2)
    assert for_a_trial(workload, lambda: workload.write_text("x = 22\n"))["as_of"] == "trial"


def test_a_git_that_fails_in_a_trial_leaves_the_state_of_the_cell_and_a_reason(workload: Path) -> None:
    static = collect_static(workload)
    workload.write_text("x = 22\n")
    shutil.rmtree(workload.parents[1] / ".git")
    snapshot = collect_env(static)
    assert snapshot.git == static.sections["git"]
    assert [reason.split(": ")[:2] for reason in snapshot.partial_reasons] == [["git", "ToolFailed"]]
