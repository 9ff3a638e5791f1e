"""The results of one run: what is kept, what moves aside, what is written."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from support.records import record

from pytest_aorta.workspace.atomic import as_json, staged_text
from pytest_aorta.workspace.paths import TrialPaths, trial_paths
from pytest_aorta.workspace.trial_store import TrialStore, prune, retire, retire_others

PATHS: TrialPaths = trial_paths("probe", None, 0)


def put(results: Path, **changes: Any) -> None:
    TrialStore(results, "earlier").write(PATHS, record(**changes))


def tree(results: Path) -> dict[str, Any]:
    return {
        path.relative_to(results).as_posix(): json.loads(path.read_text())["host"]
        for path in sorted(results.rglob("*.json"))
    }


def test_a_trial_that_could_not_be_started_does_not_take_the_place_of_a_result_that_is_kept(tmp_path: Path) -> None:
    put(tmp_path)

    TrialStore(tmp_path, "now", resume=True).write(PATHS, record(host="there", exit_status="infrastructure_failed"))

    assert tree(tmp_path) == {"probe/trial_0.json": "here"}


def test_of_one_run_the_last_record_of_a_trial_is_kept_and_the_others_move_aside(tmp_path: Path) -> None:
    store = TrialStore(tmp_path, "now", resume=True)

    for host in ("first", "second", "third"):
        store.write(PATHS, record(host=host))

    assert tree(tmp_path) == {
        ".history/now/probe/trial_0.json": "first",
        ".history/now~1/probe/trial_0.json": "second",
        "probe/trial_0.json": "third",
    }


def test_each_of_several_ranks_moves_its_own_artifacts_aside(tmp_path: Path) -> None:
    for number in range(2):
        store = TrialStore(tmp_path, "earlier", number=number)
        store.artifacts(PATHS).mkdir(parents=True)
    put(tmp_path)

    TrialStore(tmp_path, "now", number=1).retire(PATHS)
    assert sorted(path.name for path in (tmp_path / "probe").iterdir()) == ["trial_0", "trial_0.json"]
    TrialStore(tmp_path, "now", number=0).retire(PATHS)
    assert not list((tmp_path / "probe").iterdir())


def test_what_another_run_has_put_in_a_trial_s_place_meanwhile_keeps_its_cell(tmp_path: Path) -> None:
    put(tmp_path, cell="local-a")

    TrialStore(tmp_path, "now").retire(replace(PATHS, cell="local-none"))

    assert tree(tmp_path) == {"probe/local-a/trial_0.json": "here"}


@pytest.mark.parametrize(
    ("theirs", "place"), [("2025", "probe/trial_0.json"), ("2027", ".history/now/probe/trial_0.json")]
)
def test_of_two_runs_at_once_the_record_of_the_trial_that_started_later_stays(
    tmp_path: Path, theirs: str, place: str
) -> None:
    """The later start has moved the artifacts of the earlier one aside; those in place are its own."""
    store = TrialStore(tmp_path, "now")
    store.retire(PATHS)
    store.artifacts(PATHS).mkdir(parents=True)
    put(tmp_path, host="other", started_at=f"{theirs}-01-01T00:00:00.000+00:00")

    store.write(PATHS, record(host="mine", artifacts={"stdout": "trial_0/stdout.log"}))

    found = tree(tmp_path)
    assert found.pop(place) == "mine"
    assert list(found.values()) == ["other"]
    assert store.artifacts(PATHS).is_dir()


def test_what_a_killed_writer_has_left_goes_when_a_run_begins_and_what_is_being_written_stays(tmp_path: Path) -> None:
    folder = tmp_path / "probe"
    (folder / "local-none").mkdir(parents=True)
    for name in (".trial_1.json.a_b1.tmp", "local-none/.trial_11.json.x.tmp", ".other.json.x.tmp"):
        (folder / name).touch()
    with staged_text(PATHS.file_in(tmp_path), as_json(record())) as temporary:
        TrialStore(tmp_path, "now").sort_into_cells({"probe": None})
        assert temporary.exists()
    assert [path.name for path in folder.rglob(".*")] == [".other.json.x.tmp"]


def test_repeats_of_an_earlier_run_move_aside_with_its_trial_and_those_of_this_run_stay(tmp_path: Path) -> None:
    old, mine = PATHS.repeated(1), PATHS.repeated(2)
    for paths in (old, mine):
        TrialStore(tmp_path, "before").write(paths, record(host="old"))
        os.utime(paths.file_in(tmp_path), (1, 1))
    store = TrialStore(tmp_path, "now")
    store.retire(mine)
    store.write(mine, record(host="mine"))

    store.write(PATHS, record(host="new"))

    assert tree(tmp_path) == {
        f".history/now/{old.file}": "old",
        f".history/now/{mine.file}": "old",
        str(mine.file): "mine",
        str(PATHS.file): "new",
    }


STAMP = "20260202T000000.000000Z"


def lost(message: str = "ended by SIGKILL", **changes: Any) -> dict[str, Any]:
    failure = {"phase": "setup", "kind": "signal", "signal": "SIGKILL", "message": message}
    return record(exit_status="infrastructure_failed", failure=failure, **changes)


def kept(store: TrialStore, *indices: int) -> list[bool]:
    return [store.kept(trial_paths("probe", None, index), lambda record: []) is not None for index in indices]


def write(store: TrialStore, *trials: dict[str, Any]) -> None:
    for index, each in enumerate(trials):
        store.write(trial_paths("probe", None, index), {**each, "trial_index": index})


@pytest.mark.parametrize(
    "each",
    [
        lost("interrupted: Ctrl-C"),
        record(failure={**lost("interrupted: Ctrl-C")["failure"], "phase": "cleanup"}),
        lost("there is no host left to run it: node7 is gone"),
        lost("cannot import it", wall_clock_sec=None),
    ],
)
def test_what_one_event_has_taken_is_repeated_alone(tmp_path: Path, each: dict[str, Any]) -> None:
    write(TrialStore(tmp_path, "earlier"), record(), each, record())

    assert kept(TrialStore(tmp_path, STAMP, resume=True), 0, 1, 2) == [True, False, True]


def test_processes_that_ask_late_find_the_same(tmp_path: Path) -> None:
    """Another worker has repeated the lost trial meanwhile, and has lost a new one."""
    write(TrialStore(tmp_path, "earlier"), record(), lost(), record())
    now = "2026-02-02T00:00:01.000+00:00"

    TrialStore(tmp_path, STAMP, resume=True).write(trial_paths("probe", None, 1), record(started_at=now))

    assert kept(TrialStore(tmp_path, STAMP, resume=True), 0, 2) == [False, False]
    write(TrialStore(tmp_path / "other", "earlier"), record(), record())
    TrialStore(tmp_path / "other", STAMP, resume=True).write(trial_paths("probe", None, 2), lost(started_at=now))
    assert kept(TrialStore(tmp_path / "other", STAMP, resume=True), 0, 1) == [True, True]


# The history


def fill(results: Path, *files: str) -> None:
    for name in files:
        path = results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def files_in(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_a_file_goes_before_its_artifacts_and_each_time_to_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        moved.append(self.name)
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    repeat = ("w/trial_0.repeat_1.json", "w/trial_0.repeat_1/stdout.log")
    fill(tmp_path, *repeat)

    for _ in range(2):
        fill(tmp_path, "w/trial_0.json", "w/trial_0/stdout.log")
        retire(tmp_path, trial_paths("w", None, 0), "run1")

    assert moved == ["trial_0.json", "trial_0"] * 2
    names = ("w/trial_0.json", "w/trial_0/stdout.log")
    assert set(files_in(tmp_path)) == {
        *repeat,
        *(f".history/{run}/{name}" for run in ("run1", "run1~1") for name in names),
    }


def test_what_another_run_has_written_meanwhile_stays(tmp_path: Path) -> None:
    fill(tmp_path, "w/old/trial_0.json", "w/new/trial_0.json")
    os.utime(tmp_path / "w/old/trial_0.json", (100, 100))

    retire_others(tmp_path, ["w"], [], "run1", before=200)

    assert set(files_in(tmp_path)) == {"w/new/trial_0.json", ".history/run1/w/old/trial_0.json"}


def retire_often(results: Path, times: int) -> None:
    """Each run moves what the one before has left: files, artifacts, and those of a further rank."""
    for run in range(times):
        for name in ("w/trial_0", "w/trial_0.repeat_1", "w/cell/trial_1"):
            fill(results, f"{name}.json", f"{name}/stdout.log", f"{name}.rank_1/stdout.log")
            retire(results, TrialPaths(PurePosixPath(f"{name}.json")), f"run{run}")


def test_of_every_workload_the_newest_earlier_runs_are_kept(tmp_path: Path) -> None:
    retire_often(tmp_path, 4)
    fill(tmp_path, ".history/run0/other/trial_0.json", ".history/run0/w/notes.txt")

    assert prune(tmp_path, "run3", 2) == 6

    kept = files_in(tmp_path / ".history")
    assert {name.split("/")[0] for name in kept if "trial" in name} == {"run0", "run2", "run3"}
    assert [name for name in kept if name.startswith("run0/")] == ["run0/other/trial_0.json"]
    assert len(kept) == 1 + 2 * 3 * 3
    assert not (tmp_path / ".history/run1").exists()
    assert prune(tmp_path, "run3", 2) == 0


def test_a_run_prunes_only_what_it_has_added_to(tmp_path: Path) -> None:
    retire_often(tmp_path, 3)
    before = files_in(tmp_path)

    assert prune(tmp_path, "run9", 1) == 0
    assert prune(tmp_path / "nothing", "run9", 1) == 0
    fill(tmp_path, ".history/run9/other/trial_7.json")
    assert prune(tmp_path, "run9", 1) == 0
    assert prune(tmp_path, "run2", sys.maxsize) == 0
    assert before.items() <= files_in(tmp_path).items()
