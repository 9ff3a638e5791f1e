"""``pytest-aorta scan``, ``clean`` and ``init``; after the cases of Row's ``tests/cli.rs``."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from support.projects import COMMANDS, MATRIX, command, complete, project, short_status
from support.stage import Stage

from pytest_aorta.workflow.jobs import Job, JobTask
from pytest_aorta.workflow.known import Journal


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with ten directories, as the working directory."""
    monkeypatch.chdir(project(tmp_path / "project", COMMANDS, 10))
    return tmp_path / "project"


def test_products_and_edited_values_are_found_by_a_scan_of_all_or_of_what_it_names(folder: Path) -> None:
    complete(folder, "one", 8)
    complete(folder, "two", 4)
    assert short_status() == {"one": [0, 0, 0, 0, 10, 0], "two": [0, 0, 0, 0, 0, 10]}
    (folder / "workspace" / "dir5" / "v.json").write_text('{"v": -7, "half": 0}')
    assert "three" not in short_status()
    for words, stdin, count in (
        (["-a", "two"], None, 4),
        (["dir1", "dir9"], None, 1),
        (["-"], "dir2\ndir3\n", 2),
        ([], None, 5),
        ([], None, 0),
    ):
        assert command("scan", *words, stdin=stdin).output == f"index: {count} new or changed\n"
    edited = [0, 0, 0, 0, 1, 0]
    assert short_status() == {"one": [8, 0, 0, 0, 2, 0], "two": [4, 0, 0, 0, 4, 2], "three": edited}


def test_what_is_gone_is_forgotten_only_where_it_was_looked_for(folder: Path) -> None:
    complete(folder, "one", 3)
    complete(folder, "two", 2)
    command("scan")
    for name in ("dir0/one", "dir1/one", "dir0/two"):
        (folder / "workspace" / name).unlink()
    assert command("scan").output == "index: 0 new or changed\n"
    assert command("scan", "--prune", "dir0", "-a", "one").output == "index: 0 new or changed, 1 removed\n"
    assert short_status()["one"][0] == 2
    assert command("scan", "--prune").output == "index: 0 new or changed, 2 removed\n"
    assert short_status() == {"one": [1, 0, 0, 0, 9, 0], "two": [1, 0, 0, 0, 1, 8]}


def test_clean_forgets_the_index_and_nothing_else(folder: Path) -> None:
    complete(folder, "one", 4)
    command("scan")
    assert command("clean", "--directories").output == ""
    assert short_status()["one"] == [4, 0, 0, 0, 6, 0]
    command("clean", "--completed")
    assert short_status()["one"] == [0, 0, 0, 0, 10, 0]
    command("clean")
    assert [path for path in (folder / ".aorta").rglob("*") if path.is_file()] == []
    assert (folder / "workspace" / "dir3" / "one").exists()


def test_clean_spares_jobs_and_running_actions(folder: Path) -> None:
    tasks = [JobTask(units=("dir0",)), JobTask(units=("dir1",))]
    recipe = str(folder / "aorta.toml")
    job = Job(name="j", cluster="delta", scheduler="slurm", action="one", recipe=recipe, tasks=tasks, number="71")
    job.save()
    submitted = job.folder / "job.json"
    for words in (["clean"], ["clean", "--submitted"]):
        result = command(*words)
        assert (result.exit_code, result.stderr.partition(" would")[0]) == (2, "Error: 2 submitted jobs")
    assert command("clean", "--completed").exit_code == 0
    assert submitted.exists()
    assert command("clean", "--force").exit_code == 0
    assert not submitted.exists()
    with closing(Journal(folder / ".aorta")) as journal:
        journal.add("one", "dir0", "completed")
        assert command("clean").stderr == "Error: actions of this recipe run now; wait for their end, or --force\n"


@pytest.mark.usefixtures("as_users_have_it")
def test_trial_files_are_found_and_what_has_changed_since_is_stale(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of a planned cell is that of real records of its trials; each key that counts changes it."""
    stage.write(
        tiny="""
        class Tiny:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self): return {"passed": True}
            def cleanup(self): pass
        """
    )
    stage.register(tiny="tiny:Tiny")
    project(stage.path, MATRIX)
    words = "--aorta-workload tiny --aorta-trials 2 --aorta-mitigations none --aorta-mitigations tf32_off,omp_1"
    words += " --aorta-steps 2 --aorta-seed 5 --aorta-config width=8 --aorta-extra-env SOME_TOKEN=hidden"
    words += " --aorta-extra-env PLAIN=1 --aorta-results-dir workspace/matrix"
    assert stage.run_here(*words.split()).ret == 0
    monkeypatch.chdir(stage.path)
    monkeypatch.syspath_prepend(stage.path)
    assert command("scan").output == "index: 4 new or changed\n"
    fresh = {"matrix": [4, 0, 0, 0, 2, 0], "compare": [0, 0, 0, 0, 0, 2], "shrink": [0, 0, 0, 0, 4, 2]}
    assert short_status() == fresh
    [remaining] = [
        row["remaining"] for row in json.loads(command("status", "--json", "-a", "matrix").stdout)["actions"]
    ]
    assert 0 < remaining["cpu_hours"] < 0.2  # by the trials that have run, and not an hour for each
    assert b"hidden" not in b"".join(path.read_bytes() for path in (stage.path / ".aorta").iterdir() if path.is_file())
    recipe = stage.path / "aorta.toml"
    for before, after, stale in [
        ('width = "8"', 'width = "9"', 4),
        ("seed = 5", "seed = 6", 4),
        ("steps = 2", "steps = 3", 4),
        ('"hidden"', '"other"', 4),
        ("tf32_off,omp_1", "omp_1", 0),  # another cell
        ("steps = 2", "steps = 2\nisolation = 'spawn'", 4),
        ("steps = 2", "steps = 2\ntimeout = 77.0", 0),  # decides nothing about a result
    ]:
        recipe.write_text(MATRIX.replace(before, after, 1))
        assert short_status("-a", "matrix")["matrix"][2] == stale, after
    recipe.write_text(MATRIX)
    with (stage.path / "tiny.py").open("a") as file:
        file.write("# edited\n")
    assert short_status("-a", "matrix")["matrix"][:3] == [0, 0, 4]
    (next((stage.path / "workspace").rglob("local-none/trial_1.json"))).unlink()
    assert command("scan", "--prune").output == "index: 0 new or changed, 1 removed\n"
    torn = next((stage.path / "workspace").rglob("trial_0.json"))
    torn.write_text("{")
    result = command("scan")
    assert result.stdout == "index: 0 new or changed\n"
    assert str(torn) in result.stderr


def test_init_makes_a_recipe_that_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("init", "-w", 'my "space"', "new/deep").output == "recipe: new/deep/aorta.toml\n"
    assert (tmp_path / "new" / "deep" / 'my "space"').is_dir()
    assert [path.name for path in (tmp_path / "new" / "deep").iterdir() if path.name.startswith(".")] == []
    monkeypatch.chdir(tmp_path / "new" / "deep")
    assert short_status() == {"example": [0, 0, 0, 0, 10, 0]}
    commented = (tmp_path / "new" / "deep" / "aorta.toml").read_text()
    lines = commented.splitlines()
    lines = [line.removeprefix("# ") if "# [[" in line or " = " in line else line for line in lines]
    (tmp_path / "new" / "deep" / "aorta.toml").write_text("\n".join(lines))
    (tmp_path / "new" / "deep" / 'my "space"' / "a").mkdir()
    (tmp_path / "new" / "deep" / 'my "space"' / "a" / "value.json").write_text("{}")
    assert short_status() == {"example": [0, 0, 0, 0, 10, 0], "one": [0, 0, 0, 0, 1, 0]}


def test_init_refuses_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("/absolute", "../above", ""):
        result = command("init", "--workspace", name, "new")
        assert (result.exit_code, "expected the name of a folder in DIR" in result.stderr) == (2, True)
    assert not (tmp_path / "new").exists()
    for recipe in ("aorta.toml", "workflow.toml"):
        (tmp_path / "old").mkdir(exist_ok=True)
        (tmp_path / "old" / recipe).write_text("mine")
        for place in ("old", "old/below"):
            assert f"{recipe} is there already" in command("init", place).stderr
        assert (tmp_path / "old" / recipe).read_text() == "mine"
        (tmp_path / "old" / recipe).unlink()
    (tmp_path / "old" / ".aorta").mkdir()
    assert "the index of another recipe" in command("init", "old").stderr
    assert json.dumps([path.name for path in (tmp_path / "old").iterdir()]) == '[".aorta"]'
