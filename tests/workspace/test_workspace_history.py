"""Earlier results are moved aside and never overwritten."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

import pytest

from pytest_aorta.workspace.paths import TrialPaths, trial_paths
from pytest_aorta.workspace.trial_store import prune, retire, retire_others


def fill(results: Path, *files: str) -> None:
    """Write files that contain their own path."""
    for name in files:
        path = results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder, and its content."""
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_a_trial_that_runs_again_in_one_run_gets_another_folder_in_the_history(tmp_path: Path) -> None:
    for attempt in ("first", "second", "third"):
        fill(tmp_path, "w/trial_0.json", "w/trial_0/stdout.log")
        (tmp_path / "w/trial_0.json").write_text(attempt)
        retire(tmp_path, trial_paths("w", None, 0), "run1")

    moved = tree(tmp_path / ".history")
    assert {name: content for name, content in moved.items() if "json" in name} == {
        "run1/w/trial_0.json": "first",
        "run1~1/w/trial_0.json": "second",
        "run1~2/w/trial_0.json": "third",
    }
    # A record names its artifacts by the name that it has itself.
    assert {f"{run}/w/trial_0/stdout.log" for run in ("run1", "run1~1", "run1~2")} < set(moved)


def test_the_file_goes_before_its_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "w/trial_0.json", "w/trial_0/stdout.log")
    moved = []
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        moved.append(self.name)
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)

    retire(tmp_path, trial_paths("w", None, 0), "run1")

    assert moved == ["trial_0.json", "trial_0"]


def test_a_further_rank_moves_only_its_own_artifacts(tmp_path: Path) -> None:
    fill(tmp_path, "w/trial_0.json", "w/trial_0/stdout.log", "w/trial_0.rank_1/stdout.log")

    retire(tmp_path, trial_paths("w", None, 0), "run1", rank=1)

    assert set(tree(tmp_path)) == {
        "w/trial_0.json",
        "w/trial_0/stdout.log",
        ".history/run1/w/trial_0.rank_1/stdout.log",
    }


def test_what_another_run_has_written_meanwhile_stays(tmp_path: Path) -> None:
    fill(tmp_path, "w/old/trial_0.json", "w/new/trial_0.json")
    os.utime(tmp_path / "w/old/trial_0.json", (100, 100))

    retire_others(tmp_path, ["w"], [], "run1", before=200)

    assert set(tree(tmp_path)) == {"w/new/trial_0.json", ".history/run1/w/old/trial_0.json"}


def retire_often(results: Path, times: int) -> None:
    """Each run moves what the one before has left: two files, artifacts, and those of a further rank."""
    for run in range(times):
        for name in ("w/trial_0", "w/cell/trial_1"):
            fill(results, f"{name}.json", f"{name}/stdout.log", f"{name}.rank_1/stdout.log")
            retire(results, TrialPaths(PurePosixPath(f"{name}.json")), f"run{run}")


def test_of_every_workload_the_newest_earlier_runs_are_kept(tmp_path: Path) -> None:
    retire_often(tmp_path, 4)
    fill(tmp_path, ".history/run0/other/trial_0.json", ".history/run0/w/notes.txt")

    assert prune(tmp_path, "run3", 2) == 4

    kept = tree(tmp_path / ".history")
    assert {name.split("/")[0] for name in kept if "trial" in name} == {"run0", "run2", "run3"}
    assert [name for name in kept if name.startswith("run0/")] == ["run0/other/trial_0.json"]
    assert len(kept) == 1 + 2 * 2 * 3
    assert not (tmp_path / ".history/run1").exists()
    assert prune(tmp_path, "run3", 2) == 0


def test_a_run_prunes_only_what_it_has_added_to(tmp_path: Path) -> None:
    retire_often(tmp_path, 3)
    before = tree(tmp_path)

    assert prune(tmp_path, "run9", 1) == 0
    assert prune(tmp_path / "nothing", "run9", 1) == 0
    fill(tmp_path, ".history/run9/other/trial_7.json")
    assert prune(tmp_path, "run9", 1) == 0
    assert prune(tmp_path, "run2", sys.maxsize) == 0
    assert before.items() <= tree(tmp_path).items()


def test_repeats_of_a_trial_are_moved_and_kept_apart(tmp_path: Path) -> None:
    trial = trial_paths("w", None, 0)
    for run in range(3):
        for paths in (trial, trial.repeated(1)):
            fill(tmp_path, str(paths.file), f"{paths.folder}/stdout.log", f"{paths.folder}.rank_1/stdout.log")
        retire(tmp_path, trial, f"run{run}")
        assert (tmp_path / trial.repeated(1).file).exists()
        retire(tmp_path, trial.repeated(1), f"run{run}")

    assert prune(tmp_path, "run2", 1) == 4
    kept = ["", ".rank_1"]
    assert set(tree(tmp_path)) == {
        *(f".history/run2/w/trial_0{repeat}.json" for repeat in ("", ".repeat_1")),
        *(f".history/run2/w/trial_0{repeat}{rank}/stdout.log" for repeat in ("", ".repeat_1") for rank in kept),
    }
