"""``--aorta-cwd``: the working directory of a trial, and what trials leave for each other in one that they share."""

from __future__ import annotations

import fnmatch
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.stage import Stage

from pytest_aorta.launch.host.folders import SharedFolder, copy_folder, remove_unchanged

PYTHON = shlex.quote(sys.executable)

#: Resumes from a snapshot that it finds, as trainers do.
TRAIN = """
import json, os, sys
import helper
settings = json.load(open(sys.argv[1]))
resumes = os.path.exists("out/model.pt")
os.makedirs("out", exist_ok=True)
open("out/model.pt", "a").write("weights")
if os.path.exists("notes.txt"):
    open("notes.txt", "a").write("changed")
    print("saw 1")
print("resumed", int(resumes))
"""

METRICS = ("--aorta-metric", r"resumed (?P<resumed>\d)", "--aorta-metric", r"saw (?P<saw>\d)")


@pytest.fixture
def trained(stage: Stage) -> Stage:
    stage.write(train=TRAIN, helper="x = 1")
    stage.write_file("cfg.json", "{}")
    stage.write_file("notes.txt", "notes")
    return stage


@pytest.mark.slow
def test_a_command_runs_here_in_an_empty_folder_or_in_a_copy(trained: Stage) -> None:
    def run(cwd: str, words: str = "train.py cfg.json", *options: str) -> tuple[str, list[object]]:
        given = ("--aorta-command", f"{PYTHON} {words}", *METRICS, "--aorta-trials", "2", *options)
        result = trained.run_here(*given, *(("--aorta-cwd", cwd) if cwd else ()), "--aorta-resume")
        result.assert_outcomes(passed=2)
        trials = [trained.trial(f"command-train/trial_{number}.json") for number in (0, 1)]
        assert {trial["request"]["cwd_of_trial"] for trial in trials} == {cwd or "here"}
        return result.stdout.str(), [trial["result"]["metrics"]["resumed"] for trial in trials]

    def kept(number: int) -> list[str]:
        folder = trained.results / "command-train" / f"trial_{number}" / "files"
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    shown, resumed = run("")
    assert resumed == [0, 1]
    said = "aorta: command-train: no launcher; *; no GPU"
    assert [line for line in shown.splitlines() if fnmatch.fnmatch(line, said)]
    [warning] = [line for line in shown.splitlines() if line.startswith("warning: ") and "appeared" in line]
    assert "ran: notes.txt, out/; one trial may find what another has left (--aorta-cwd fresh or copy)" in warning

    shown, resumed = run("fresh")
    assert resumed == [0, 0]
    assert "2 earlier results not kept: working directory here -> fresh" in shown
    assert "appeared or changed" not in shown
    assert kept(1) == ["out/model.pt"]
    assert "2 of 2 trials had a result already" in run("fresh")[0]
    assert run("fresh", "-m train cfg.json", "--aorta-slots", "2")[1] == [0, 0]

    (trained.path / "out" / "model.pt").unlink()
    before = (trained.path / "notes.txt").read_text()
    shown, resumed = run("copy")
    assert resumed == [0, 0]
    assert kept(1) == ["notes.txt", "out/model.pt"]
    assert (trained.path / "notes.txt").read_text() == before
    assert trained.trial("command-train/trial_1.json")["result"]["metrics"]["saw"] == 1


@pytest.mark.slow
def test_workload_classes_have_one_likewise(stage: Stage) -> None:
    stage.write(
        leaves="""
        import os
        from pathlib import Path

        class Leaves:
            def __init__(self, config): pass
            def setup(self): self.found = os.path.exists("left")
            def run(self):
                Path("left").touch()
                import neighbour
                return {"passed": not self.found, "metrics": {"cwd": os.getcwd(), "neighbour": neighbour.__file__}}
        """,
        neighbour="",
    )
    stage.register(leaves="leaves:Leaves")
    given = ("--aorta-workload", "leaves", "--aorta-trials", "2")
    result = stage.run_here(*given)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["warning: leaves local-none: files in the working directory appeared or*: left; *"])
    for options in (("fresh",), ("fresh", "--aorta-isolation", "none"), ("fresh", "--aorta-slots", "2"), ("copy",)):
        (stage.path / "left").unlink(missing_ok=True)
        result = stage.run_here(*given, "--aorta-cwd", *options)
        result.assert_outcomes(passed=2)
        for number, trial in enumerate(stage.trials().values()):
            folder = stage.results / "leaves" / f"trial_{number}" / "files"
            assert trial["result"]["metrics"] == {"cwd": str(folder), "neighbour": str(stage.path / "neighbour.py")}
            assert [path.name for path in folder.iterdir()] == ["left"]
        assert not (stage.path / "left").exists()
        assert "appeared" not in result.stdout.str()
    refused = stage.run_here(*given, "--aorta-cwd", "copy", "--aorta-isolation", "none")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR


def test_a_copy_is_complete_and_what_is_unchanged_goes(tmp_path: Path) -> None:
    source, results = tmp_path / "project", tmp_path / "project" / "results"
    target = results / "w" / "trial_0" / "files"
    for name in (
        "a.py",
        "data/deep/b.bin",
        "data/c.txt",
        ".git/HEAD",
        "venv/pyvenv.cfg",
        "results/old.json",
        "../beside",
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "inside").symlink_to("data/c.txt")
    (source / "outside").symlink_to("../beside")
    (source / "a.py").chmod(0o755)
    target.mkdir(parents=True)
    copy_folder(source, target, results)
    assert sorted(path.name for path in target.iterdir()) == [".git", "a.py", "data", "inside", "outside", "venv"]
    shown = subprocess.run(["diff", "-r", "-x", "results", source, target], capture_output=True, text=True, check=False)
    assert (shown.stdout, shown.returncode) == ("", 0)
    assert {name for name in (".git", "venv") if (target / name).is_symlink()} == {".git", "venv"}
    assert (target / "inside").resolve() == target / "data" / "c.txt"
    assert (target / "outside").read_text() == "../beside"
    assert (target / "a.py").stat().st_mode == (source / "a.py").stat().st_mode
    (target / "inside").write_text("changed")
    (target / "new").touch()
    remove_unchanged(target, source)
    assert {str(path.relative_to(target)) for path in target.rglob("*")} == {"data", "data/c.txt", "new"}
    assert (source / "data" / "c.txt").read_text() == "data/c.txt"


def test_what_trials_leave_in_a_shared_folder_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_aorta.launch.host.folders._TIMES", 0)
    for name in ("old", "many/0", "few/0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for number in range(600):
        (tmp_path / "many" / str(number)).touch()
    shared = SharedFolder(str(tmp_path), str(tmp_path / "results"))
    for name in (".coverage", "__pycache__/a.pyc", "results/x.json", "many/1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("changed")
        assert shared.warning() is None, name
    for name in ("few/0", "old", "a", "b", "c", "new/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("changed")
    text = shared.warning()
    assert text is not None
    assert "ran: a, b, c, few/0, new/, 1 more; one trial" in text
    (tmp_path / "d").touch()
    assert shared.warning() is None


@pytest.mark.slow
def test_the_output_of_pytest_is_not_what_trials_leave(trained: Stage) -> None:
    words = [sys.executable, "-m", "pytest", "--aorta-command", f"{sys.executable} -c print()", "--aorta-trials", "2"]
    with (trained.path / "log").open("w") as log:
        subprocess.run(words, cwd=trained.path, stdout=log, env=trained.environ(), check=True)
    shown = (trained.path / "log").read_text()
    assert "2 passed" in shown
    assert "appeared" not in shown
    [trial] = trained.results.glob("command-python*/trial_1.json")  # python, or python3
    assert json.loads(trial.read_text())["warnings"] == []
