"""Plugins that run a trial more than once keep every time apart; in need of a package index."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.pip_environments import pip
from support.stage import Stage

pytestmark = pytest.mark.downstream

PLUGINS = ("pytest-rerunfailures", "pytest-flakefinder", "pytest-repeat")

#: The first of all its runs fails.
SECOND = """
import os

class Second:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        fd = os.open("ledger", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.write(fd, b".")
        try:
            os.mkdir("first")
        except FileExistsError:
            return {"passed": True}
        return {"passed": False}
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    pip(Path(sys.executable), "install", "--no-deps", "--target", str(folder), *PLUGINS)
    return folder


@pytest.fixture
def second(stage: Stage, plugins: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage.write(second=SECOND)
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(plugins), *([path] if path else [])]))
    return stage


def test_rerunfailures(second: Stage) -> None:
    second.run("second.py", "--reruns", "1", "--aorta-trials", "2").assert_outcomes(passed=2)
    assert second.statuses() == {
        "Second/trial_0.json": "workload_failed",
        "Second/trial_0.repeat_1.json": "ok",
        "Second/trial_1.json": "ok",
    }
    resumed = second.run("second.py", "--reruns", "1", "--aorta-trials", "2", "--aorta-resume")
    resumed.stdout.fnmatch_lines(["Second local-none  1 of 2*", "1 repeat of the same trials not in the table: 1 ok*"])
    assert (second.path / "ledger").read_text() == "...."


@pytest.mark.parametrize("way", [(), ("-n", "2"), ("--aorta-slots", "2")])
def test_flakefinder(second: Stage, way: tuple[str, ...]) -> None:
    done = second.run("second.py", "--flake-finder", "--flake-runs", "3", *way)
    done.assert_outcomes(failed=1, passed=2)
    assert second.files() == ["Second/trial_0.json", "Second/trial_0.repeat_1.json", "Second/trial_0.repeat_2.json"]
    assert second.earlier() == []


def test_repeat(second: Stage) -> None:
    done = second.run("second.py", "--count", "3")
    done.stdout.fnmatch_lines(["--count 3 of pytest-repeat*--aorta-trials 3"])
    assert not second.results.exists()
