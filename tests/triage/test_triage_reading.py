"""A results directory is read into the table that the run itself had."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.records import record
from support.stage import Stage

from pytest_aorta.settings import RequestError
from pytest_aorta.triage.matrix import RunState, matrix_json
from pytest_aorta.triage.reading import Results, read_triage
from pytest_aorta.triage.verdicts import Table

FLAKY = """
import os

class Flaky:
    def __init__(self, config): self.steps = config.get("steps", 4)
    def setup(self):
        if os.environ.get("NO_SETUP"):
            raise OSError("no device")
    def run(self):
        index = int(os.environ["AORTA_TRIAL_INDEX"])
        if index % 3 == 0 and "DISABLE_TF32" not in os.environ:
            raise ArithmeticError(f"loss is nan at 0x{index:x}")
        times = [10.0 + step + index / 10 for step in range(self.steps)]
        return {"passed": index % 4 != 2, "step_times_ms": times, "first_failure_iteration": index}
"""

TESTS = """
import pytest

def test_several(aorta_run):
    for index in range(3):
        aorta_run("flaky", index=index)
    aorta_run("other", steps=7)
    aorta_run("flaky", extra_env={"X": "1"})
    aorta_run("flaky", extra_env={"X": "2"})
    aorta_run("flaky")
    aorta_run("flaky")

@pytest.mark.aorta(trials=2, mitigations=["none", "tf32_off,no_setup", "tf32_off"])
@pytest.mark.parametrize("size", [1, "a/b [\\x1b<&]"])
def test_marked(aorta_run, size):
    aorta_run("flaky", steps=3)
"""


@pytest.mark.slow
def test_the_table_that_is_read_is_that_of_the_run(stage: Stage) -> None:
    stage.write(flaky=FLAKY, test_it=TESTS)
    stage.register(flaky="flaky:Flaky", other="flaky:Flaky")
    stage.write_registry(mitigations={"no_setup": {"NO_SETUP": "1"}})
    axes = [word for names in ("none", "tf32_off", "tf32_off,no_setup") for word in ("--aorta-mitigations", names)]
    options = ("--aorta-registry-file", "registry.json")
    stage.run("--aorta-workload", "other", "--aorta-workload", "flaky", "--aorta-trials", "4", *axes, *options)
    stage.run("test_it.py", *options, "--aorta-results-dir", "of_tests")
    for results, cells in (("results", 6), ("of_tests", 10)):
        live = json.loads((stage.path / results / "matrix.json").read_text())
        state = RunState(live["plan"], started_at=live["started_at"], written_at=live["written_at"])
        again = json.loads(matrix_json(read(stage.path / results), state))
        assert len(live["cells"]) == cells
        for cell in (*live["cells"], *again["cells"]):
            del cell["planned"]
        assert again == live


def read(path: Path) -> Table:
    return read_triage(path)[0].table()


def write(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record(**changes)))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """With six trials in three cells, and much that is none."""
    folder = tmp_path / "results"
    for index in (0, 1, 10):
        write(folder, f"flat/trial_{index}.json", workload="flat", trial_index=index, trial_id=f"flat_d0_m0_t{index}")
    for cell in ("local-b", "local-a"):
        write(folder, f"deep/{cell}/trial_0.json", workload="deep", cell=cell, mitigations_applied=[cell[-1]])
    write(
        folder,
        "test_it.py@test_one/deep@local-a/trial_0.json",
        workload="deep",
        test={"node_id": "test_it.py::test_one"},
    )
    write(folder, ".history/20260101/flat/trial_0.json", workload="flat")
    write(folder, "flat/trial_0/files/results/inner/trial_0.json")
    write(folder, "flat/trial_0.rank_1/files/trial_0.json")
    write(folder, "flat/matrix.json")
    (folder / "deep" / "round").symlink_to(folder)
    (folder / f"packages-{'a' * 16}.json").write_text(json.dumps({"versions": {"numpy": "2"}}))
    return folder


def test_files_are_found_wherever_runs_write_them(results: Path) -> None:
    found = Results(results)
    assert [trial.file for trial in found] == [
        "deep/local-a/trial_0.json",
        "deep/local-b/trial_0.json",
        "flat/trial_0.json",
        "flat/trial_1.json",
        "flat/trial_10.json",
        "test_it.py@test_one/deep@local-a/trial_0.json",
    ]
    assert found.unreadable == []
    assert found.installed(f"sha256:{'a' * 64}") == {"numpy": "2"}


@pytest.mark.parametrize(
    ("part", "files"),
    [
        ("flat", ["flat/trial_0.json", "flat/trial_1.json", "flat/trial_10.json"]),
        ("deep/local-b", ["deep/local-b/trial_0.json"]),
        ("flat/trial_1.json", ["flat/trial_1.json"]),
        (".history/20260101", [".history/20260101/flat/trial_0.json"]),
    ],
)
def test_a_part_of_the_results_can_be_read_alone(results: Path, part: str, files: list[str]) -> None:
    found = Results(results / part)
    assert [trial.file for trial in found] == files
    assert found.folder == results


def test_a_workload_may_be_called_as_a_folder_of_artifacts_is(tmp_path: Path) -> None:
    write(tmp_path, "trial_3/trial_0.json", workload="trial_3")
    assert [trial.file for trial in Results(tmp_path)] == ["trial_3/trial_0.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"schema_version": "0.1", "trial', "not valid JSON"),
        (b"", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1, 2]", "not the record of a trial"),
        (b'{"passed": true}', "not the record of a trial"),
        (json.dumps(record(schema_version="9.0")).encode(), "schema_version: Input should be '0.1', not '9.0'"),
        (
            json.dumps(record(exit_status="workload_setup_failed")).encode(),
            "exit_status: Input should be 'ok', 'workload_failed', 'infrastructure_failed' or 'timeout', not 'w",
        ),
        (json.dumps(record(workload=None)).encode(), "workload: Input should be a valid string, not None"),
        (json.dumps(record(cell=["a"])).encode(), "cell: Input should be a valid string, not ['a']"),
        (
            json.dumps(record(mitigations_applied=[5])).encode(),
            "mitigations_applied.0: Input should be a valid string, not 5",
        ),
        (json.dumps(record(exit_status="timeout", failure={"phase": [], "kind": "timeout"})).encode(), "failure.phase"),
        (json.dumps(record(execution_env={})).encode(), "execution_env.kind: Field required"),
        (json.dumps(record(exit_status="timeout", failure={"phase": "run"})).encode(), "failure.kind: Field required"),
    ],
)
def test_files_that_are_no_records_are_named_and_the_rest_is_read(results: Path, content: bytes, reason: str) -> None:
    (results / "flat" / "trial_1.json").write_bytes(content)
    found = Results(results)
    assert len(list(found)) == 5
    [unreadable] = found.unreadable
    assert unreadable.file == "flat/trial_1.json"
    assert reason in unreadable.reason
    assert len(list(found)) == 5  # read again
    assert len(found.unreadable) == 1


def test_paths_that_cannot_be_are_refused_as_others(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")
    for name in ("n" * 300, "round"):
        with pytest.raises(RequestError, match="there is no such file or folder"):
            Results(tmp_path / name)


def test_results_behind_a_link_are_read(results: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(results / "deep")
    assert len(list(Results(tmp_path / "link"))) == 2


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(results: Path) -> None:
    (results / "flat" / "trial_1.json").chmod(0)
    found = Results(results)
    assert len(list(found)) == 5
    assert [each.reason for each in found.unreadable] == ["Permission denied"]


def test_replays_do_not_count_unless_they_are_asked_for(results: Path) -> None:
    write(
        results,
        "replay/flat/trial_0.json",
        workload="flat",
        replay_of={"file": "x", "started_at": None, "exit_status": "ok"},
    )
    found = Results(results)
    assert len(list(found)) == 6
    assert found.replays == 1
    assert [trial.file for trial in Results(results / "replay")] == ["replay/flat/trial_0.json"]


def test_cells_are_in_the_order_of_the_plan_and_trials_count_once(results: Path) -> None:
    for index, cell in enumerate(("local-b", "local-a")):
        for trial in range(2):
            name = f"deep_d0_m{index}_t{trial}"
            write(
                results, f"deep/{cell}/trial_{trial}.json", workload="deep", cell=cell, trial_id=name, trial_index=trial
            )
    for number in range(2):  # a test may start several trials with one index
        path = f"test_it.py@test_one/deep@local-a/trial_{number}.json"
        write(results, path, workload="deep", test={"node_id": "test_it.py::test_one"})
    rows = read(results).rows
    assert [(row.cell.key.test, row.cell.key.cell, row.cell.total) for row in rows] == [
        ("", "local-b", 2),
        ("", "local-a", 2),
        ("", "local-none", 3),
        ("test_it.py::test_one", "local-none", 2),
    ]
