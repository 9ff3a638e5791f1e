"""Environments of plain commands need an interpreter and nothing of ours; some are given by what is installed there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.fake_distributions import use_index, write_wheel
from support.stage import Stage, make_venv, text

TRAIN = """
import sys, tiny

for step in range(1, 6):
    tiny.step()
    print("step", step, flush=True)
print("prefix", sys.prefix)
"""


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip and uv find two versions of a package, of which the second is slower."""
    folder = tmp_path / "index"
    folder.mkdir()
    for version, seconds in (("1.0", 0.02), ("2.0", 0.06)):
        write_wheel(folder, "tiny", version, f"import time\ndef step(): time.sleep({seconds})\n")
    use_index(monkeypatch, folder, tmp_path / "cache")
    return folder


def made(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache/pytest-aorta/environments").glob("*/complete"))


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.slow
def test_two_versions_of_a_package_are_two_cells_of_one_line(stage: Stage, tmp_path: Path) -> None:
    stage.write(train=TRAIN)
    words = ["--aorta-command", "python train.py", "--aorta-metric", r"step (?P<step>\d+)", "--aorta-trials", "40"]
    words += ["--aorta-environment", "uv:tiny==1.0", "--aorta-environment", "uv:tiny==2.0", "--aorta-stop", "speed"]
    stage.run(*words, "--collect-only").stdout.fnmatch_lines(["*tiny==1.0-none-0*"])
    assert made(tmp_path) == []
    result = stage.run(*words)
    result.stdout.fnmatch_lines(
        [
            "aorta: making the environment 'uv:tiny==1.0', in *",
            "  tiny==1.0-none *",
            "  tiny==2.0-none * slower: +*",
            "Slower steps: tiny==2.0-none +*",
        ]
    )
    trial = stage.trial("command-train/tiny==2.0-none/trial_0.json")
    (digest,) = {trial["env"]["packages"]["digest"]}
    listing = stage.results / f"packages-{digest.removeprefix('sha256:')[:16]}.json"
    assert '"tiny": "2.0"' in listing.read_text()
    assert "pytest-aorta" not in listing.read_text()
    assert (trial["execution_env"]["kind"], trial["execution_env"]["verified"]) == ("venv", True)
    before = [file.stat().st_mtime_ns for file in made(tmp_path)]
    assert "making" not in text(stage.run(*words, "--aorta-results-dir", "again"))
    assert [file.stat().st_mtime_ns for file in made(tmp_path)] == before != []


@pytest.mark.parametrize("tool", ["pip", "uv"])
@pytest.mark.slow
def test_what_cannot_be_installed_is_said(
    stage: Stage, tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool == "pip":
        monkeypatch.setenv("PATH", os.defpath)
    elif shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    stage.write(train=TRAIN)
    words = ["--aorta-command", "python train.py", "--aorta-environment", "uv:tiny==1.0 nowhere==3"]
    result = stage.run(*words)
    said = "*install *tiny==1.0 nowhere==3' ended with exit code 1: *nowhere==3*; see *.log*"
    result.stdout.fnmatch_lines(
        [f"aorta: it cannot be made: {said}", f"*environment 'uv:tiny==1.0 nowhere==3': {said}"]
    )
    assert made(tmp_path) == []


def test_no_package_is_no_environment(stage: Stage) -> None:
    result = stage.run("--aorta-command", "true", "--aorta-environment", "uv:")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*environment 'uv:': it names no package, as in uv:numpy==1.26"])


def test_a_venv_without_anything_of_ours_runs_commands(stage: Stage) -> None:
    stage.write(show="import sys; print('prefix', sys.prefix); sys.exit('pytest_aorta' in sys.modules)")
    make_venv(stage.path / "bare", with_ours=False)
    registry = stage.write_registry(environments={"bare": {"venv": "bare"}})
    words = ("--aorta-command", "python show.py", "--aorta-registry-file", registry, "--aorta-environment", "bare")
    stage.run(*words, "--aorta-trials", "2").assert_outcomes(passed=2)
    trial = stage.trial("command-show/trial_0.json")
    prefix = str(stage.path / "bare")
    assert (stage.results / "command-show/trial_0/stdout.log").read_text() == f"prefix {prefix}\n"
    assert trial["env"]["python"]["prefix"] == prefix
    assert trial["execution_env"]["verified"] is True
    assert trial["fingerprint_parts"]["interpreter"] == f"{prefix}/bin/python"
    stage.run(*words, "--aorta-trials", "2", "--aorta-resume").stdout.fnmatch_lines(
        ["2 of 2 trials had a result already (--aorta-resume)"]
    )
