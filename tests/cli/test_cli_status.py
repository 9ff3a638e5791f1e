"""How far each action of a recipe is: ``status``, ``show``, ``--where``; after the cases of Row's ``tests/cli.rs``."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from support.fake_distributions import install
from support.projects import COMMANDS, MATRIX, command, complete, project, short_status
from support.stage import Stage

from pytest_aorta.workflow.jobs import Job, JobTask
from pytest_aorta.workflow.known import Journal, Outcome


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with ten directories, as the working directory."""
    monkeypatch.chdir(project(tmp_path / "project", COMMANDS, 10))
    return tmp_path / "project"


def note(folder: Path, action: str, outcome: Outcome, *directories: str) -> None:
    with closing(Journal(folder / ".aorta")) as journal:
        for directory in directories:
            journal.add(action, directory, outcome)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, asked = command(), command("--help")
    assert (missing.exit_code, asked.exit_code) == (2, 0)
    for result in (missing, asked):
        assert "Usage: main [OPTIONS] COMMAND" in result.output
        assert {"init", "status", "show", "scan", "clean"} <= set(result.output.split())
    monkeypatch.chdir(tmp_path)
    for words in (["status"], ["show", "directories"], ["scan"], ["clean"]):
        result = command(*words)
        assert result.exit_code == 2
        assert result.stderr.splitlines() == [
            f"Error: no aorta.toml or workflow.toml in {tmp_path} or above it; pytest-aorta init makes one"
        ]
    project(tmp_path, "")
    result = command("status")
    assert (result.exit_code, result.output) == (0, "No actions match: the recipe has none.\n")


def test_rows_of_actions_with_directories(folder: Path) -> None:
    lines = command("status").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["Action", "Completed", "Failed", "Stale", "Submitted", "Eligible", "Waiting", "Remaining", "cost"],
        ["one", "0", "0", "0", "0", "10", "0", "10", "CPU-hours"],
        # Groups of 4, 4 and 2 directories, three hours of two GPUs each.
        ["two", "0", "0", "0", "0", "0", "10", "18", "GPU-hours"],
    ]
    assert command("status", "--all").stdout.splitlines()[-1].split() == ["three", *"0000000", "CPU-hours"]
    assert command("status", "--no-header").stdout.splitlines() == lines[1:]


def test_filters(folder: Path) -> None:
    for flags, shown in (
        (["--waiting"], ["two"]),
        (["--eligible"], ["one"]),
        (["--submitted"], []),
        (["--failed", "--waiting"], ["two"]),
        (["-a", "one"], ["one"]),
        (["-a", "t*", "--all"], ["two", "three"]),
    ):
        assert list(short_status(*flags)) == shown
    result = command("status", "-a", "on")
    assert (result.exit_code, result.stderr) == (2, "Error: no action matches 'on'; there are one, two, three\n")


def test_only_some_directories(folder: Path) -> None:
    for arguments, stdin in ((["dir1", "dir2/", "nodir"], None), (["-"], "dir1\ndir2\nnodir\n")):
        result = command("status", "--short", *arguments, stdin=stdin)
        assert result.stdout.splitlines() == [
            "one\t0\t0\t0\t0\t2\t0\t2.00\t0.00",
            "two\t0\t0\t0\t0\t0\t2\t0.00\t6.00",
        ]
        assert result.stderr == "warning: 'nodir' not found in workspace\n"


def test_what_a_run_has_journaled_counts_at_once(folder: Path) -> None:
    note(folder, "one", "completed", "dir0", "dir1", "dir2")
    note(folder, "one", "failed", "dir3")
    assert short_status() == {"one": [3, 1, 0, 0, 6, 0], "two": [0, 0, 0, 0, 3, 7]}
    # A command that has failed is run again, so it still costs.
    assert json.loads(command("status", "--json").stdout)["actions"][0] == {
        "name": "one",
        "completed": 3,
        "failed": 1,
        "stale": 0,
        "submitted": 0,
        "eligible": 6,
        "waiting": 0,
        "remaining": {"cpu_hours": 7.0, "gpu_hours": 0.0},
        "running": 0,
    }
    note(folder, "one", "completed", "dir3")
    assert short_status("-a", "one") == {"one": [4, 0, 0, 0, 6, 0]}


def test_directories_that_come_and_go_are_seen(folder: Path) -> None:
    assert short_status("-a", "one") == {"one": [0, 0, 0, 0, 10, 0]}
    (folder / "workspace" / "new").mkdir()
    (folder / "workspace" / "new" / "v.json").write_text('{"v": -1}')
    (folder / "workspace" / "a file").touch()
    assert short_status() == {"one": [0, 0, 0, 0, 11, 0], "two": [0, 0, 0, 0, 0, 11], "three": [0, 0, 0, 0, 1, 0]}
    (folder / "workspace" / "new" / "v.json").unlink()
    (folder / "workspace" / "new").rmdir()
    assert list(short_status()) == ["one", "two"]


def test_a_value_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "workspace" / "dir3" / "v.json").write_text("{")
    result = command("status")
    assert result.exit_code == 2
    assert "the value of directory 'dir3' is not valid JSON" in result.stderr
    (folder / "workspace" / "dir3" / "v.json").unlink()
    assert "the value of directory 'dir3' cannot be read: No such file" in command("status").stderr
    (folder / "workspace" / "dir3" / "v.json").write_text("{}")
    assert "directory 'dir3' has no element '/v'" in command("status").stderr


def test_submitted_jobs_are_counted_and_shown(folder: Path) -> None:
    recipe, tasks = str(folder / "aorta.toml"), [JobTask(units=("dir0", "dir1"))]
    Job(name="j", cluster="delta", scheduler="slurm", action="one", recipe=recipe, tasks=tasks, number="71").save()
    assert short_status("-a", "one") == {"one": [0, 0, 0, 2, 8, 0]}
    shown = command("show", "directories", "-a", "one", "--submitted").stdout.splitlines()
    assert [line.split() for line in shown[1:]] == [[f"dir{n}", "submitted", "delta/71"] for n in (0, 1)]


def test_a_command_that_a_job_has_begun_twice_is_told(folder: Path) -> None:
    """As SLURM does with a job whose node it has lost, while that goes on."""
    recipe, tasks = str(folder / "aorta.toml"), [JobTask(units=("dir0", "dir1"))]
    job = Job(name="j", cluster="delta", scheduler="slurm", action="one", recipe=recipe, tasks=tasks, number="71")
    job.save()
    (job.folder / "task-0.log").write_text("began 0 n0\nbegan 0 n1\nstatus 0 0\nbegan 1 n1\n")
    line = "  job delta/71 has begun it 2 times: on n0, on n1"
    assert line in command("why", "dir0", "-a", "one").stdout.splitlines()
    assert "has begun" not in command("why", "dir1", "-a", "one").stdout


def test_a_workspace_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(tmp_path / "project", COMMANDS))
    for words in (["status"], ["show", "directories"], ["scan"], ["submit", "--dry-run"]):
        assert f"warning: the workspace {tmp_path}/project/workspace does not exist" in command(*words).stderr
    (tmp_path / "project/workspace").mkdir()
    assert "does not exist" not in command("status").stderr


def test_it_works_where_the_index_cannot_be_written(folder: Path) -> None:
    (folder / ".aorta").touch()  # root may write into any folder
    assert short_status("-a", "one") == {"one": [0, 0, 0, 0, 10, 0]}


def test_cells_and_trials_of_a_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "tiny", {"aorta.workloads": {"tiny": "tiny:Tiny"}})
    monkeypatch.chdir(project(tmp_path / "project", MATRIX))
    assert short_status() == {
        "matrix": [0, 0, 0, 0, 6, 0],
        "compare": [0, 0, 0, 0, 0, 2],
        "shrink": [0, 0, 0, 0, 0, 6],
    }
    assert short_status("local-none", "-a", "matrix") == {"matrix": [0, 0, 0, 0, 3, 0]}
    cells = json.loads(command("show", "cells", "--json", "--value", "/config/width").stdout)["cells"]
    assert [(cell["name"], cell["eligible"], cell["values"]) for cell in cells] == [
        ("local-none", 3, {"/config/width": "8"}),
        ("local-tf32_off+omp_1", 3, {"/config/width": "8"}),
    ]
    trials = command("show", "trials", "local-none", "--value", "/trial", "--value", "/mitigations").stdout
    assert [line.split() for line in trials.splitlines()][1:] == [
        [f"local-none/{number}", "eligible", str(number), '["none"]'] for number in range(3)
    ]
    assert command("show", "directories", "-a", "compare", "--short").stdout.split() == [
        "local-none",
        "local-tf32_off+omp_1",
    ]
    assert command("show", "trials", "-a", "compare").stderr.startswith("Error: 'compare' matches no action with a")


def test_products_of_one_name_in_show_directories(folder: Path) -> None:
    complete(folder, "one", 2)
    assert command("scan").exit_code == 0
    shown = command("show", "directories", "-a", "two", "--value", "/v", "--value", "/half").stdout
    assert [line.split() for line in shown.splitlines()] == [
        ["Directory", "Status", "Job", "ID", "/v", "/half"],
        *([f"dir{n}", "eligible" if n < 2 else "waiting", str(n), str(n // 2)] for n in range(4)),
        [],
        *([f"dir{n}", "waiting", str(n), str(n // 2)] for n in range(4, 8)),
        [],
        *([f"dir{n}", "waiting", str(n), str(n // 2)] for n in (8, 9)),
    ]
    assert command("show", "directories", "-a", "one", "--no-header").stdout.split()[:2] == ["dir0", "completed"]
    assert command("show", "directories", "-a", "two", "--eligible", "--short").stdout == "dir0\ndir1\n"
    assert command("show", "directories", "--short").stdout.split() == [f"dir{n}" for n in range(10)]
    dir4 = {"name": "dir4", "action": None, "state": None, "job": None, "values": {"": {"v": 4, "half": 2}}}
    shown = command("show", "directories", "dir4", "--json", "--value", "").stdout
    assert json.loads(shown) == {"directories": [dir4]}
    assert command("show", "directories", "--eligible").stderr.startswith("Error: states are those of an action")
    assert command("show", "directories", "--value", "v").stderr.startswith("Error: --value 'v' is not a JSON pointer")


def test_an_unknown_name_is_named_with_its_action_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = '[[action]]\nname = "one"\nworkload = "gemm"\n[[action]]\nname = "two"\nworkload = "gemn"\n'
    monkeypatch.chdir(project(tmp_path / "project", recipe))
    result = command("status")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {tmp_path}/project/aorta.toml:4: action 'two': unknown workload 'gemn'; ")


def names(*arguments: str) -> list[str]:
    result = command("show", *arguments, "--short")
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_what_meets_conditions_is_counted_and_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.register(tiny="work:Tiny")
    monkeypatch.syspath_prepend(stage.path)
    monkeypatch.chdir(project(stage.path, COMMANDS + MATRIX, 10))
    command("status")  # what is remembered is of all
    # Conditions on directories and on trials: neither has what the other has.
    assert short_status("--where", "/v<3") == {"one": [0, 0, 0, 0, 3, 0], "two": [0, 0, 0, 0, 0, 3]}
    assert short_status("--where", "/v<3", "--where", "/half==1", "-a", "one") == {"one": [0, 0, 0, 0, 1, 0]}
    assert short_status("--where", "/trial==0", "-a", "matrix") == {"matrix": [0, 0, 0, 0, 2, 0]}
    assert short_status("-a", "one", "dir1", "dir2", "--where", "/v<2") == {"one": [0, 0, 0, 0, 1, 0]}
    assert short_status()["one"] == [0, 0, 0, 0, 10, 0]
    assert names("directories", "--where", "/v>=8") == ["dir8", "dir9"]
    assert names("directories", "-a", "one", "--where", "/half==4") == ["dir8", "dir9"]
    of_none = ("--where", '/mitigations==["none"]')
    assert names("trials", *of_none, "--where", "/trial>0") == ["local-none/1", "local-none/2"]
    assert names("cells", *of_none) == ["local-none"]
    assert names("trials", "local-none", "--where", "/trial==2") == ["local-none/2"]
    for words in (["status"], ["show", "trials"], ["show", "cells"], ["show", "directories", "-a", "one"]):
        result = command(*words, "--where", "/learning_rate<1")
        assert result.exit_code == 2
        assert "--where '/learning_rate<1': no trial or directory has /learning_rate; there are /" in result.stderr
        result = command(*words, "--where", "lr")
        assert (result.exit_code, result.stderr[:45]) == (2, "Error: --where: 'lr' is not valid; expected P")
